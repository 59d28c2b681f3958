"""A render service as the conformance records' servers were set up: one per tokenizer and list of flags."""

from __future__ import annotations

from functools import cache

from tests.support.tokenizers import tokenizer
from tokenwire.derender.chat_parser import ParserSetup
from tokenwire.derender.parser import find_format
from tokenwire.render.encoders import EncoderOptions, choose_encoder, load_encoder
from tokenwire.service.models import ModelRegistry
from tokenwire.service.render import RenderOptions, RenderService

MODEL_TYPES = {"gptoss": "gpt_oss"}
START_DATE = "2025-01-01"


@cache
def render_service(name: str, flags: tuple[str, ...] = (), max_model_len: int | None = 4096) -> RenderService:
    """`flags` are those of vLLM's command line that matter to rendering."""
    values = dict(zip(flags, [*flags[1:], ""], strict=False))
    loaded = tokenizer(name)
    mode = choose_encoder(loaded, mode=values.get("--tokenizer-mode", "auto"), model_type=MODEL_TYPES.get(name))
    encoder = load_encoder(mode, loaded, EncoderOptions(start_date=START_DATE))
    tools, reasoning = values.get("--tool-call-parser"), values.get("--reasoning-parser")
    parser = ParserSetup(format=find_format(tools, reasoning)) if tools or reasoning else None
    options = RenderOptions(max_model_len=max_model_len, enable_auto_tool_choice="--enable-auto-tool-choice" in flags)
    return RenderService(ModelRegistry(["smol"], root="smol"), loaded, encoder, options, parser=parser)
