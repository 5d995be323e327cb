"""The command line: dispatch, exit codes and errors. No model is loaded."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from voicechat import cli


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom voicechat import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'vllm', 'numpy', 'pydantic', 'aiohttp', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("serve", "ask", "bench", "train", "assemble", "config", "doctor"):
        assert f"\n    {command} " in result.stdout
    assert result.stdout.rstrip().endswith("[]")


def test_no_command_and_unknown_commands_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["sing"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(words)
        assert caught.value.code == cli.USAGE_ERROR
    assert "sing" in capsys.readouterr().err


def test_config_prints_the_settings_and_hides_keys(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["config", "--model", "embedded-tiny", "--device", "cuda", "--set", "server.api_keys=sesame"]
    words += ["--brain", "http://127.0.0.1:1/v1", "--brain-model", "m", "--brain-api-key", "sesame"]
    words += ["--set", f"watermark.key={'5ec7e7' * 10}5ec7", "--set", f"watermark.known_keys={'5ec7e7' * 10}5ec7"]
    words += ["--set", "rtc.turn=turn:t", "--set", "rtc.turn_secret=sesame"]
    assert cli.main([*words, "--set", "server.port=1234"]) == 0
    out = capsys.readouterr().out
    tree = yaml.safe_load(out)
    assert (tree["model"]["name"], tree["device"], tree["server"]["port"]) == ("embedded-tiny", "cuda", 1234)
    assert (tree["brain"]["url"], tree["brain"]["model"]) == ("http://127.0.0.1:1/v1", "m")
    assert "sesame" not in out and "5ec7" not in out


def test_a_wrong_setting_ends_with_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", "--port", "70000"])
    assert caught.value.code == cli.USAGE_ERROR
    assert capsys.readouterr().err.startswith("voicechat: server.port: ")


def test_a_failed_assembly_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["assemble", "--set", f"data_dir={tmp_path}", "--set", f"model.weights={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert "talker.safetensors" in error
    assert "voicechat train" in error


def add_ask(monkeypatch: pytest.MonkeyPatch, main: Callable[[argparse.Namespace], int | None]) -> None:
    """Stand in for the module of ``voicechat ask``."""
    module = types.ModuleType("voicechat.ask")
    module.main = main  # type: ignore[attr-defined]
    module.add_arguments = lambda parser: parser.add_argument("question")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "voicechat.ask", module)


def test_a_module_adds_its_arguments_and_gets_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_ask(monkeypatch, lambda options: {"a.wav": 3, "b.wav": None}[options.question])
    assert cli.main(["ask", "a.wav"]) == 3
    assert cli.main(["ask", "b.wav"]) == 0
    with pytest.raises(SystemExit) as caught:
        cli.main(["ask", "--help"])
    assert caught.value.code == 0
    assert "question" in capsys.readouterr().out


def test_an_interrupt_is_not_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_options: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    add_ask(monkeypatch, interrupted)
    assert cli.main(["ask", "a.wav"]) == cli.INTERRUPTED
    assert "interrupted" in capsys.readouterr().err


def test_the_doctor_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor", "--json", "--set", f"data_dir={tmp_path}", "--set", "server.port=0"])
    findings = json.loads(capsys.readouterr().out)
    assert {"python", "packages", "vllm", "models", "port"} <= {finding["check"] for finding in findings}
