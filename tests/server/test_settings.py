"""Settings: (1) a flag wins over the environment, that over the file, that over the default; (2) text becomes the
declared type, the same from every source; (3) unknown keys and bad values are one sentence that names source, wish and
value; (4) secrets are never shown; (5) vLLM's flags are accepted, noted or refused by name; (6) the table is sound."""

import pytest

from tokenwire.commands.engines import local_options, vllm_flags
from tokenwire.engine.local.options import of_replica
from tokenwire.settings import SettingsError, load, make_parser
from tokenwire.settings.foreign import FOREIGN_FLAGS
from tokenwire.settings.sources import all_options, build


def loaded(*argv, env=None):
    return load(make_parser("tokenwire serve", "."), list(argv), env or {})


def settings(*argv, env=None):
    return loaded(*argv, env=env).settings


def test_the_nearer_source_wins(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("max_num_seqs: 1\nmax-logprobs: 2\nport: 3\n")
    env = {"TOKENWIRE_MAX_LOGPROBS": "20", "TOKENWIRE_PORT": "30"}
    found = settings("--config", str(path), "--port", "300", env=env)
    assert (found.limits.max_num_seqs, found.limits.max_logprobs, found.network.port) == (1, 20, 300)
    assert found.limits.stream_interval == 1
    assert settings(env={"TOKENWIRE_CONFIG": str(path)}).network.port == 3


@pytest.mark.parametrize(
    "argv, group, name, value",
    [
        (["--max-model-len", "4k"], "model", "max_model_len", 4000),
        (["--max-model-len", "4K"], "model", "max_model_len", 4096),
        (["--max-model-len", "auto"], "model", "max_model_len", None),
        (["--max_model_len=77"], "model", "max_model_len", 77),
        (["--max-body-bytes", "1.5M"], "network", "max_body_bytes", 1572864),
        (["--shutdown-timeout", "2.5"], "network", "shutdown_timeout", 2.5),
        (["--served-model-name", "a", "b"], "model", "served_model_name", ["a", "b"]),
        (["--served-model-name", "a,b"], "model", "served_model_name", ["a", "b"]),
        (["--allowed-origins", '["*"]'], "network", "allowed_origins", ["*"]),
        (["--api-key", "a", "--api-key", "b"], "access", "api_key", ["a", "b"]),
        (["--override-generation-config", '{"top_k": 5}'], "model", "override_generation_config", {"top_k": 5}),
        (["--no-enable-prefix-caching"], "engine", "enable_prefix_caching", False),
        (["--enable-log-requests"], "logs", "enable_log_requests", True),
        (["MODEL"], "model", "model", "MODEL"),
        (["--model", "MODEL"], "model", "model", "MODEL"),
        (["--generation-config", "auto"], "model", "generation_config", "auto"),
        (["--dtype", "auto"], "engine", "dtype", "auto"),
    ],
)
def test_flags_become_their_types(argv, group, name, value):
    assert getattr(getattr(settings(*argv), group), name) == value


@pytest.mark.parametrize(
    "name, text, group, value",
    [
        ("TOKENWIRE_API_KEY", "k1,k2", "access", ["k1", "k2"]),
        ("TOKENWIRE_ENABLE_LOG_REQUESTS", "1", "logs", True),
        ("TOKENWIRE_ENABLE_PREFIX_CACHING", "false", "engine", False),
        ("TOKENWIRE_OVERRIDE_GENERATION_CONFIG", '{"top_k": 3}', "model", {"top_k": 3}),
        ("TOKENWIRE_UDS", "", "network", None),
    ],
)
def test_variables_become_their_types(name, text, group, value):
    found = getattr(settings(env={name: text}), group)
    assert getattr(found, name.removeprefix("TOKENWIRE_").lower()) == value


def test_a_file_may_hold_plain_values_or_text(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "max_body_bytes: 64M\nserved_model_name: [a, b]\noverride_generation_config: {top_k: 3}\n"
        "shutdown_timeout: 3\nenable_prefix_caching: false\nuds: null\n"
    )
    found = settings("--config", str(path))
    assert found.network.max_body_bytes == 64 * 2**20
    assert found.model.served_model_name == ["a", "b"]
    assert found.model.override_generation_config == {"top_k": 3}
    assert (found.network.shutdown_timeout, found.engine.enable_prefix_caching, found.network.uds) == (3.0, False, None)


VLLM_IS_ONE_PROCESS = (
    "--api-server-count above 1 is not for --engine vllm, which runs inside the one front end. Start `vllm serve` and "
    "put several front ends before it: --engine remote --worker URL --api-server-count N."
)


@pytest.mark.parametrize(
    "argv, env, sentence",
    [
        (["--max-num-seqs", "0"], {}, "--max-num-seqs must be a whole number of at least 1, got 0."),
        (["--max-num-seqs", "many"], {}, "--max-num-seqs must be a whole number of at least 1, got 'many'."),
        (["--shutdown-timeout", "nan"], {}, "--shutdown-timeout must be a number of at least 0, got nan."),
        (["--scheduling-policy", "x"], {}, "--scheduling-policy must be one of fcfs, priority, got 'x'."),
        (["--override-generation-config", "[1]"], {}, "--override-generation-config must be a JSON object, got '[1]'."),
        (["--no-such"], {}, "--no-such is not a flag."),
        (["--max-num-seq=3"], {}, "--max-num-seq is not a flag. Did you mean --max-num-seqs?"),
        (["a", "b"], {}, "b is not a flag."),
        (["a", "--model", "b"], {}, "The model is given twice: 'a' and --model 'b'."),
        ([], {"TOKENWIRE_PORT": "x"}, "TOKENWIRE_PORT must be a whole number from 0 to 65535, got 'x'."),
        ([], {"TOKENWIRE_TOKENS_ONLY": "maybe"}, "TOKENWIRE_TOKENS_ONLY must be true or false, got 'maybe'."),
        (["--enable-log-outputs"], {}, "--enable-log-outputs needs --enable-log-requests."),
        (["--ssl-keyfile", "k"], {}, "--ssl-keyfile and --ssl-certfile go together; one of them is missing."),
        (["--tokens-only", "--tokenizer", "t"], {}, "--tokens-only loads no tokenizer; leave --tokenizer out."),
        (["--enable-auto-tool-choice"], {}, "--enable-auto-tool-choice needs --tool-call-parser."),
        (
            ["--tokens-only", "--reasoning-parser", "qwen3"],
            {},
            "--tool-call-parser and --reasoning-parser need a tokenizer; let it be loaded.",
        ),
        (["--api-server-count", "0"], {}, "--api-server-count must be a whole number from 1 to 64, got 0."),
        (["--api-workers", "2", "--engine", "vllm"], {}, VLLM_IS_ONE_PROCESS),
        (
            ["-dp", "2", "--engine", "remote"],
            {},
            "--data-parallel-size is not for --engine remote: name several workers (--worker).",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(argv, env, sentence):
    with pytest.raises(SettingsError) as caught:
        settings(*argv, env=env)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "content, part",
    [
        ("max_num_seq: 1", "max_num_seq is not a setting. Did you mean max_num_seqs?"),
        ("port: eight", "port in {path} must be a whole number from 0 to 65535, got 'eight'."),
        ("port: [1]", "port in {path} must be a whole number from 0 to 65535, got [1]."),
        ("port: true", "port in {path} must be a whole number from 0 to 65535, got True."),
        ("- a", "the file must be a map of settings, got list."),
        ("{", "expected"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path, content, part):
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(SettingsError) as caught:
        settings("--config", str(path))
    assert part.format(path=path) in str(caught.value)


def test_a_missing_file_is_one_sentence():
    with pytest.raises(SettingsError, match="--config /no/file"):
        settings("--config", "/no/file")


def test_an_empty_file_sets_nothing(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("")
    assert settings("--config", str(path)) == settings()


def test_secrets_are_not_shown(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("api_key: {hush: 1}\n")
    with pytest.raises(SettingsError) as caught:
        settings("--config", str(path))
    assert "hush" not in str(caught.value)


def test_a_misspelt_variable_is_noted():
    notes = loaded(env={"TOKENWIRE_MAX_NUM_SEQ": "1", "TOKENWIRE_CONFORMANCE": "x", "OTHER": "y"}).notes
    assert notes == ["TOKENWIRE_MAX_NUM_SEQ is not a setting and has no effect. Did you mean TOKENWIRE_MAX_NUM_SEQS?"]


@pytest.mark.parametrize("flag", FOREIGN_FLAGS)
def test_vllms_other_flags_are_noted_or_refused_by_name(flag, capsys):
    foreign = FOREIGN_FLAGS[flag]
    argv = ["MODEL", flag, *(["1"] if foreign.takes_value else [])]
    if foreign.refused:
        with pytest.raises(SystemExit) as caught:
            loaded(*argv)
        assert caught.value.code == 2
        assert capsys.readouterr().err == f"tokenwire serve: {flag} is not supported: {foreign.sentence}\n"
    else:
        found = loaded(*argv)
        assert found.settings.model.model == "MODEL"
        assert found.notes == [f"{flag} is accepted without effect: {foreign.sentence}"]


def test_names_are_unique_and_not_vllms_foreign_ones():
    names = [option.name for _, _, options in all_options() for option in options]
    assert len(names) == len(set(names))
    flags = {"--" + name.replace("_", "-") for name in names}
    assert not flags & set(FOREIGN_FLAGS)


def test_every_setting_has_help_and_a_default_that_it_accepts():
    for _, _, options in all_options():
        for option in options:
            assert option.help.endswith((".", ")")), option.name
            assert option.default is None or option.from_plain(option.default, option.name) == option.default


def test_flags_of_ours_reach_vllm_and_its_own_come_last():
    found = settings(
        "M", "--engine", "vllm", "--return-sampling-mask", "--max-num-seqs", "7", "--", "--max-num-seqs", "9"
    )
    flags = vllm_flags(found)
    assert "--return-sampling-mask" in flags
    assert flags[-2:] == ["--max-num-seqs", "9"]


def test_settings_of_the_same_meaning_reach_vllm():
    told = ("--block-size", "32"), ("--per-request-spec-decode-metrics", "summary"), ("--max-lora-rank", "64")
    more = ("--no-enable-prefix-caching", "--trust-remote-code", "--lora-modules", "a=/a")
    flags = vllm_flags(settings("M", "--engine", "vllm", *(word for pair in told for word in pair), *more))
    assert all((flag, value) in zip(flags, flags[1:], strict=False) for flag, value in told)
    assert {"--no-enable-prefix-caching", "--trust-remote-code", "--enable-lora"} <= set(flags)
    assert "--lora-modules" not in flags


def test_replicas_share_cores_and_ports_and_draw_numbers_of_their_own(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("tokenwire.engine.local.options.num_cores", lambda: 8)
    options = local_options(build({"seed": 5, "kv_transfer_port": 6000}))
    both = [of_replica(options, rank, 2) for rank in (0, 1)]
    assert [(one.num_threads, one.seed, one.kv_transfer_port) for one in both] == [(4, 5, 6000), (4, 6, 6001)]
    assert of_replica(options, 0, 1) == options
    assert of_replica(local_options(build({"num_threads": 3})), 1, 2).num_threads == 3


def test_settings_of_the_same_name_reach_the_local_engine():
    from tokenwire.engine.local.options import LocalEngineOptions

    told = {"return_sampling_mask": True, "max_num_seqs": 3, "stream_interval": 4, "block_size": 8, "fused": False}
    options = {name: getattr(local_options(build(told)), name) for name in told}
    assert options == told
    assert all(getattr(LocalEngineOptions(), name) != value for name, value in told.items())
