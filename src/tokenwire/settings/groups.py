"""Every setting there is, in the groups in which the help shows them.

A field is a setting: `max_num_seqs` is the flag `--max-num-seqs`, the variable `TOKENWIRE_MAX_NUM_SEQS` and the file
key `max_num_seqs` (or `max-num-seqs`). Names are unique over all groups, and vLLM's where the meaning is vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tokenwire.settings.option import option


@dataclass(slots=True, frozen=True, kw_only=True)
class ModelSettings:
    """Model"""

    model: str | None = option(help="Folder, GGUF file or hub name of the weights; without one, SmolLM2-135M-Instruct.")
    engine: Literal["local", "vllm", "remote", "null"] = option(
        "local",
        help="What makes the tokens: the built-in PyTorch engine, vLLM in this process (its flags after --), "
        "token servers elsewhere (--worker), or none (instant known tokens, for tests).",
    )
    served_model_name: list[str] = option(
        [], metavar="NAME", help="Names that requests may use; the first one stands in replies. Default: the model."
    )
    tokenizer: str | None = option(help="Folder or file of the tokenizer. Default: beside the weights.")
    tokens_only: bool = option(False, help="Ids in, ids out: load no tokenizer, refuse whatever needs text.")
    skip_tokenizer_init: bool = option(False, help="Load no tokenizer; requests that need one are refused.")
    max_model_len: int | None = option(
        minimum=1, help="Longest prompt plus output, in tokens (4k, 4K). Default: the model's."
    )
    generation_config: str = option(
        "auto", help="Where sampling defaults come from: auto (the model), vllm (neutral values), or a folder."
    )
    override_generation_config: dict[str, Any] = option(
        {}, metavar="JSON", help="Sampling defaults that win over the generation config."
    )


@dataclass(slots=True, frozen=True, kw_only=True)
class NetworkSettings:
    """Network"""

    host: str = option("127.0.0.1", help="Address to listen on; 0.0.0.0 for all.")
    port: int = option(8000, minimum=0, maximum=65535, help="Port to listen on; 0 takes a free one.")
    uds: str | None = option(metavar="PATH", help="Listen on a Unix socket instead.")
    root_path: str = option("", help="Path prefix that a proxy in front strips.")
    ssl_keyfile: str | None = option(metavar="FILE", help="TLS private key.")
    ssl_certfile: str | None = option(metavar="FILE", help="TLS certificate.")
    ssl_ca_certs: str | None = option(metavar="FILE", help="CA certificates that clients must be signed by.")
    ssl_cert_reqs: int = option(0, minimum=0, maximum=2, help="Client certificates: 0 no, 1 optional, 2 required.")
    ssl_ciphers: str = option("TLSv1", help="TLS ciphers, in OpenSSL's notation.")
    allowed_origins: list[str] = option([], metavar="JSON", help="Origins allowed by CORS; none: CORS is off.")
    allowed_methods: list[str] = option(["*"], metavar="JSON", help="Methods allowed by CORS.")
    allowed_headers: list[str] = option(["*"], metavar="JSON", help="Headers allowed by CORS.")
    allow_credentials: bool = option(False, help="Allow credentials in CORS requests.")
    max_body_bytes: int = option(128 * 2**20, minimum=1, help="Largest request body, in bytes (64M).")
    http_timeout_keep_alive: int = option(5, minimum=0, help="Seconds that an idle connection is kept.")
    h11_max_incomplete_event_size: int = option(
        4 * 2**20, minimum=1, help="Largest request head in bytes, where the h11 parser is used."
    )
    shutdown_timeout: float = option(30.0, minimum=0, help="Seconds that running requests get to finish after SIGTERM.")
    api_server_count: int = option(
        1,
        minimum=1,
        maximum=64,
        aliases=("--api-workers",),
        help="Front-end processes (HTTP, render, derender) on one port, over one engine or its replicas.",
    )


@dataclass(slots=True, frozen=True, kw_only=True)
class AccessSettings:
    """Access"""

    api_key: list[str] = option(
        [], metavar="KEY", secret=True, help="Keys that /v1, /v2, /inference and control routes accept."
    )
    allow_unauthenticated_admin: bool = option(
        False, help="Without a key, let control routes answer callers from other machines too."
    )
    enable_request_id_headers: bool = option(False, help="Answer with X-Request-Id (the caller's, else a new one).")
    skip_model_name_validation: bool = option(False, help="Accept any `model` in requests.")
    server_dev_mode: bool = option(False, help="Also serve the routes that upstream has in its development mode only.")
    strict_fields: bool = option(False, help="Refuse unknown request fields instead of logging them once.")


@dataclass(slots=True, frozen=True, kw_only=True)
class LimitSettings:
    """Limits and scheduling"""

    max_num_seqs: int = option(256, minimum=1, help="Sequences that run at once.")
    max_num_batched_tokens: int | None = option(minimum=1, help="Tokens computed in one step. Default: the engine's.")
    max_num_queued_reqs: int | None = option(
        minimum=0, help="Sequences in flight before new requests get 503. Default: no limit."
    )
    max_num_queued_tokens: int | None = option(
        minimum=0, help="Prompt tokens waiting before new requests get 503. Default: no limit."
    )
    max_logprobs: int = option(20, minimum=-1, help="Largest `logprobs`; -1: the whole vocabulary.")
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"] = option(
        "raw_logprobs", help="Which scores are returned."
    )
    stream_interval: int = option(1, minimum=1, help="Tokens per stream chunk.")
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "priority",
        help="Which requests run first: the lowest `priority`, equal ones in order of arrival; fcfs: no priorities.",
    )
    max_n_sequences: int = option(16384, minimum=1, help="Largest `n` of any request.")
    max_num_bad_words: int = option(128, minimum=0, help="Most `bad_words` of one request.")
    max_stop_strings: int = option(4, minimum=0, help="Most `stop` strings of one chat or completion request.")


@dataclass(slots=True, frozen=True, kw_only=True)
class OutputSettings:
    """Replies"""

    logprob_token_field: bool = option(False, help='Logprob entries also have `token: "token_id:N"`.')
    return_tokens_as_token_ids: bool = option(False, help="Logprobs of text levels show token_id:N instead of text.")
    return_sampling_mask: bool = option(
        False, help="Choices tell, for every token, which ids survived top_k, top_p and min_p."
    )
    enable_prompt_tokens_details: bool = option(False, help="Report cached_tokens in usage.")
    enable_force_include_usage: bool = option(False, help="Streamed chats and completions always end with their usage.")
    enable_per_request_metrics: bool = option(False, help="Chats and completions tell their timings in `metrics`.")
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = option(
        "none", help="Speculative-decoding figures in `metrics`."
    )


@dataclass(slots=True, frozen=True, kw_only=True)
class ChatSettings:
    """Chat and parsers"""

    tool_call_parser: str | None = option(metavar="NAME", help="Format in which the model writes tool calls.")
    reasoning_parser: str | None = option(metavar="NAME", help="Format in which the model writes its reasoning.")
    enable_auto_tool_choice: bool = option(False, help="Let the model decide to call tools; needs --tool-call-parser.")
    default_chat_template_kwargs: dict[str, Any] = option(
        {}, metavar="JSON", help="Variables of the chat template where a request has none."
    )
    tokenizer_mode: Literal["auto", "hf", "slow", "jinja", "harmony", "mistral", "deepseek_v32", "deepseek_v4"] = (
        option("auto", help="Chat format; auto: the tokenizer's template, or the model's own format where it has none.")
    )
    chat_template: str | None = option(
        metavar="FILE", help="Chat template (a file, or the text) in place of the tokenizer's."
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = option(
        "auto", help="Message content for the template: one string, or a list of parts; auto: read off the template."
    )
    exclude_tools_when_tool_choice_none: bool = option(
        False, help='Leave tools out of the prompt when tool_choice is "none".'
    )
    trust_request_chat_template: bool = option(False, help="Let requests bring a chat template of their own.")
    trust_request_mm_kwargs: bool = option(False, help="Let requests bring options of media loading and processing.")
    system_start_date: str | None = option(
        metavar="DATE", help="Date that chat formats with one print, as 2025-01-31. Default: today."
    )


@dataclass(slots=True, frozen=True, kw_only=True)
class LogSettings:
    """Logs, metrics and tracing"""

    log_level: Literal["debug", "info", "warning", "error"] = option("info", help="Least severity that is logged.")
    enable_log_requests: bool = option(False, help="Log id, sampling and adapter of every request; ids at debug.")
    enable_log_outputs: bool = option(False, help="Log the ids of every reply; needs --enable-log-requests.")
    enable_log_deltas: bool = option(True, help="With output logging, log streamed replies too.")
    max_log_len: int | None = option(minimum=0, help="Most ids of one request in the log.")
    disable_uvicorn_access_log: bool = option(False, help="Log no line per HTTP request.")
    disable_access_log_for_endpoints: list[str] = option(
        [], metavar="PATHS", help="Paths that the access log leaves out, as /health,/metrics."
    )
    log_error_stack: bool = option(False, help="Log the stack of errors that are the caller's fault too.")
    disable_log_stats: bool = option(False, help="Collect no request metrics.")
    enable_server_load_tracking: bool = option(False, help="Count requests in flight for /load.")
    otlp_traces_endpoint: str | None = option(metavar="URL", help="Send one trace span per request there (OTLP).")


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineSettings:
    """Engine"""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto", help="Type of weights and cache; auto: float32 on a CPU, else the model's own."
    )
    device: str = option("auto", help="auto, cpu, cuda or cuda:N.")
    quantization: Literal["none", "int8"] = option(
        "none",
        help="int8: weights in 8 bits, for Llama-like models in float32 on a CPU. Faster, not quite the same ids.",
    )
    block_size: int = option(16, minimum=1, help="Tokens per KV cache block.")
    num_kv_blocks: int | None = option(minimum=1, help="Size of the KV cache in blocks. Default: from memory.")
    kv_cache_memory_bytes: int | None = option(minimum=1, help="Size of the KV cache in bytes (4G). Default: chosen.")
    enable_prefix_caching: bool = option(True, help="Keep the KV cache of prompts for later requests.")
    num_threads: int | None = option(
        minimum=1, help="CPU threads of the engine, of each of its replicas. Default: all cores, divided among them."
    )
    data_parallel_size: int = option(
        1,
        minimum=1,
        maximum=128,
        aliases=("-dp",),
        help="Replicas of the engine on this machine, each with the whole model and a cache of its own.",
    )
    seed: int | None = option(
        minimum=0, help="Requests without a seed draw by this one and their order of arrival. Default: each at random."
    )
    speculative: Literal["none", "ngram"] = option(
        "none",
        help="Speculative decoding: ngram looks up what followed the newest tokens before and verifies it in one step. "
        "Same output, fewer steps.",
    )
    num_speculative_tokens: int = option(4, minimum=1, maximum=64, help="Tokens guessed per step, at most.")
    ngram_min: int = option(2, minimum=1, help="Newest tokens that must have stood before, at least.")
    ngram_max: int = option(4, minimum=1, help="Newest tokens that are compared to choose among earlier places.")
    speculative_config: dict[str, Any] = option(
        {},
        metavar="JSON",
        help="The same as vLLM spells it: method ngram, num_speculative_tokens, prompt_lookup_min, prompt_lookup_max.",
    )
    fused: bool = option(True, help="Use the fast path for architectures that have one.")
    trust_remote_code: bool = option(False, help="Run model code that comes with the weights.")
    load_timeout: float = option(600.0, minimum=0, help="Seconds that loading the model may take.")
    engine_restarts: int = option(0, minimum=0, help="How often a dead engine is started again.")
    kv_transfer_port: int | None = option(
        minimum=0,
        maximum=65535,
        help="Give KV blocks to other engines, and pull theirs (`kv_transfer_params`); listen on this port, 0 takes a "
        "free one. Default: off.",
    )
    kv_transfer_host: str = option(
        "127.0.0.1",
        help="Address of that port, as the others reach it. From a loopback address only loopback is pulled from.",
    )
    kv_transfer_secret: str | None = option(
        metavar="KEY", secret=True, help="What both sides of a transfer must know. Default: nothing."
    )
    kv_transfer_ttl: float = option(60.0, minimum=0, help="Seconds that blocks are kept for a pull to begin.")
    kv_transfer_timeout: float = option(
        30.0, minimum=0.1, help="Seconds that a pull may take before the prompt is computed instead."
    )
    null_step_ms: float = option(0.0, minimum=0, help="Pause after each step of the null engine.")
    null_vocab_size: int = option(65536, minimum=1, help="Vocabulary of the null engine.")


@dataclass(slots=True, frozen=True, kw_only=True)
class AdapterSettings:
    """LoRA adapters, where the engine takes them (vLLM)"""

    enable_lora: bool = option(False, help="Make room for adapters; implied by the settings that name some.")
    lora_modules: list[str] = option(
        [], metavar="NAME=PATH", help="Adapters loaded at the start; or JSON objects with name and path."
    )
    default_mm_loras: dict[str, Any] = option(
        {}, metavar="JSON", help="Medium -> adapter that prompts with this medium use without naming it."
    )
    max_loras: int | None = option(minimum=1, help="Adapters in one batch. Default: the engine's.")
    max_lora_rank: int | None = option(minimum=1, help="Largest rank of an adapter. Default: the engine's.")


@dataclass(slots=True, frozen=True, kw_only=True)
class RemoteSettings:
    """Other engines: remote workers, vLLM"""

    worker: list[str] = option(
        [], metavar="URL", help="Token servers that run requests (vLLM or tokenwire), for --engine remote."
    )
    decode_worker: list[str] = option([], metavar="URL", help="The same as --worker, beside --prefill-worker.")
    prefill_worker: list[str] = option(
        [], metavar="URL", help="Token servers that run prompts and hand their KV cache to a decode worker."
    )
    worker_dialect: Literal["scale-out", "sglang", "llamacpp"] = option(
        "scale-out", help="What workers speak: /inference/v1/generate, SGLang's /generate, llama.cpp's /completion."
    )
    worker_api_key: str | None = option(metavar="KEY", secret=True, help="Sent to every worker as a bearer token.")
    worker_model: str | None = option(metavar="NAME", help="Model name that requests to workers carry. Default: none.")
    worker_msgpack: bool = option(True, help="Speak MessagePack with workers that are tokenwire.")
    worker_health_interval: float = option(2.0, minimum=0.01, help="Seconds between health checks of a worker.")
    worker_start_timeout: float = option(600.0, minimum=0, help="Seconds to wait for the first worker.")
    worker_attempts: int = option(3, minimum=1, help="Workers that a request may be tried on before its first token.")
    vocab_size: int | None = option(minimum=1, help="Vocabulary of the workers' model, where they cannot tell.")
    eos_token_ids: list[str] = option(
        [], metavar="ID", help="EOS ids of the workers' model, the primary one first, where they cannot tell."
    )
    vllm_args: list[str] = option([], metavar="FLAG", help="Flags of vLLM's engine; on the command line, all after --.")


@dataclass(slots=True, frozen=True, kw_only=True)
class Settings:
    """All groups; complete when built."""

    model: ModelSettings = field(default_factory=ModelSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    chat: ChatSettings = field(default_factory=ChatSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    adapters: AdapterSettings = field(default_factory=AdapterSettings)
    remote: RemoteSettings = field(default_factory=RemoteSettings)
