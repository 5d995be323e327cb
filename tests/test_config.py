"""The settings tree: order of sources, types, and errors that name the key."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from voicechat import config
from voicechat.config import ConfigError, Settings, load_settings, model_names, resource_dir
from voicechat.config_reference import reference

ROOT = Path(__file__).resolve().parent.parent


def load(*overrides: str, model: str | None = None, **environ: str) -> Settings:
    return load_settings(model, overrides=overrides, environ=environ)


def test_every_named_model_loads_under_its_own_name() -> None:
    assert {"embedded", "embedded-tiny"} <= set(model_names())
    for name in model_names():
        assert load(model=name).model.name == name


def test_the_default_model_is_embedded_and_the_environment_may_name_another() -> None:
    assert load().model.name == "embedded"
    assert load(VOICECHAT_MODEL="embedded-tiny").model.name == "embedded-tiny"
    assert load(model="embedded", VOICECHAT_MODEL="embedded-tiny").model.name == "embedded"


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("server: {port: 1001, host: 0.0.0.0}\nthinker: {threads: 3}\n")
    assert Settings().server.port == 8000
    settings = load(model=str(file))
    assert (settings.server.port, settings.server.host, settings.thinker.threads) == (1001, "0.0.0.0", 3)
    assert load(model=str(file), VOICECHAT_SERVER__PORT="1002").server.port == 1002
    settings = load("server.port=1003", model=str(file), VOICECHAT_SERVER__PORT="1002")
    assert (settings.server.port, settings.thinker.threads) == (1003, 3)


def test_values_from_text_get_the_type_of_their_key() -> None:
    settings = load(
        "server.api_keys=a, b",
        "thinker.cores=[0,1]",
        "voicebox.latency_first.growth=1.5",
        "assemble.hub=false",
        "model.thinker.dir=~/llm",
        VOICECHAT_TALKER__CORES="2",
        VOICECHAT_DEVICE="cuda",
    )
    assert settings.server.api_keys == ("a", "b")
    assert settings.thinker.cores == (0, 1)
    assert settings.talker.cores == (2,)
    assert settings.voicebox.latency_first.growth == 1.5
    assert settings.assemble.hub is False
    assert settings.model.thinker.dir == Path("~/llm")
    assert settings.device == "cuda"
    assert load("thinker.cores=null", VOICECHAT_THINKER__CORES="1").thinker.cores is None


def test_the_data_folder() -> None:
    assert load().data_dir == Path("~/.cache/voicechat").expanduser()
    assert load(VOICECHAT_HOME="/data").data_dir == Path("/data")
    assert load("data_dir=/flag", VOICECHAT_HOME="/data").data_dir == Path("/flag")
    assert load("data_dir=here").data_dir == Path.cwd() / "here"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("server.port=abc", ["server.port", "--set server.port=abc", "integer"]),
        ("server.port=70000", ["server.port", "65535"]),
        ("server.prt=1", ["server.prt", "no such setting", "server.port"]),
        ("nonsense.key=1", ["nonsense", "no such setting"]),
        ("server=1", ["server", "section"]),
        ("device=tpu", ["device", "'cpu' or 'cuda'"]),
        ("thinker.cores=a", ["thinker.cores", "integer"]),
        ("pool.slots=9", ["thinker.max_num_seqs", "pool.slots (9)"]),
        ("voicebox.quality_first.max_chunk=1", ["voicebox.quality_first", "max_chunk (1)"]),
        ("brain.url=http://127.0.0.1/v1", ["brain.url is set, but brain.model is not"]),
        ("brain.model=m", ["brain.model is set, but brain.url is not"]),
        ("brain.url=127.0.0.1:8080/v1", ["brain.url", "http://HOST/v1"]),
        ("brain.url=file:///etc/passwd", ["brain.url", "http://HOST/v1"]),
        ("novalue", ["novalue", "section.key=value"]),
    ],
)
def test_a_wrong_flag_is_named(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(override)
    for word in words:
        assert word in str(caught.value)


def test_a_wrong_variable_is_named_and_foreign_ones_are_left_alone() -> None:
    with pytest.raises(ConfigError, match=r"server\.port.*VOICECHAT_SERVER__PORT"):
        load(VOICECHAT_SERVER__PORT="x")
    with pytest.raises(ConfigError, match=r"server\.nope.*VOICECHAT_SERVER__NOPE"):
        load(VOICECHAT_SERVER__NOPE="x")
    assert load(VOICECHAT_VENV="/somewhere", OTHER__THING="1") == load()


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such model; there are .*embedded-tiny"):
        load(model="embeded")
    with pytest.raises(ConfigError, match="no such file"):
        load(model=str(tmp_path / "none.yaml"))
    file = tmp_path / "broken.yaml"
    for content in ("a: [", "- 1\n", "server: {port: nope}\n", "server: {port: {deep: 1}}\n"):
        file.write_text(content)
        with pytest.raises(ConfigError, match=r"broken\.yaml|server\.port"):
            load(model=str(file))
    file.write_text("")
    assert load(model=str(file)) == load_settings(str(file), environ={})


def test_settings_are_frozen_and_travel_to_other_processes() -> None:
    settings = load("server.port=1")
    with pytest.raises(ValidationError):
        settings.server.port = 2  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_resources_are_found_in_the_package_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (resource_dir("configs") / "embedded.yaml").is_file()
    package = tmp_path / "voicechat"
    (package / "web").mkdir(parents=True)
    (tmp_path / "configs").mkdir()
    monkeypatch.setattr(config, "_PACKAGE", package)
    assert resource_dir("web") == package / "web"
    assert resource_dir("configs") == tmp_path / "configs"
    (tmp_path / "configs").rmdir()
    with pytest.raises(FileNotFoundError, match="configs"):
        resource_dir("configs")


@pytest.mark.parametrize("url", ["http://h/v1", "http://h/v1/", "http://h/v1/chat/completions"])
def test_the_address_of_a_brain(url: str) -> None:
    assert load(f"brain.url={url}", "brain.model=m").brain.url == "http://h/v1"
    made = load(VOICECHAT_BRAIN__URL=url, VOICECHAT_BRAIN__MODEL="m", VOICECHAT_BRAIN__API_KEY="k")
    assert (made.brain.url, made.brain.api_key) == ("http://h/v1", "k")


def test_the_page_of_all_settings_is_up_to_date() -> None:
    page = ROOT / "docs" / "settings.md"
    command = "voicechat config --reference > docs/settings.md"
    assert page.read_text() == reference(), f"out of date; make it anew: {command}"


def test_the_page_of_all_settings_names_every_key_with_its_default() -> None:
    def leaves(tree: dict[str, object], path: str = "") -> dict[str, object]:
        found: dict[str, object] = {}
        for name, value in tree.items():
            key = f"{path}.{name}" if path else name
            found |= leaves(value, key) if isinstance(value, dict) and value else {key: value}
        return found

    rows = [line.split(" | ") for line in reference().splitlines() if line.startswith("| `")]
    named = {row[0].strip("| `"): row[2].strip("` ") for row in rows}
    assert len(named) == len(rows)
    wanted = leaves(Settings().model_dump())
    assert named.keys() == wanted.keys()
    for key, value in wanted.items():
        if isinstance(value, tuple):
            shown = ",".join(map(str, value)) or "none"
        else:
            shown = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
        assert named[key] == shown, key
