"""Ctrl-C with an answer under way: it is given to its end, and then everybody goes by themselves."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx

from openclaw_rl.config import Config
from openclaw_rl.supervision.state import read_state
from openclaw_rl.supervision.supervisor import Supervisor

PIECES = 60


def test_an_answer_under_way_is_given_to_its_end_and_then_all_loops_go_by_themselves(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"text": "a" * PIECES, "delay_per_token_s": 0.02}]), encoding="utf-8")
    config = Config.model_validate({
        "run_dir": tmp_path / "run",
        "serving": {"port": 0},
        "engine": {"kind": "scripted", "script": script},
        "judge": {"kind": "scripted"},
        "training": {"enabled": False},
    })  # fmt: skip
    stop = threading.Event()
    lines: list[str] = []

    def read(url: str) -> None:
        body = {"model": "policy", "stream": True, "messages": [{"role": "user", "content": "Write."}]}
        try:
            with httpx.stream("POST", f"{url}/chat/completions", json=body, timeout=60.0) as response:
                for line in response.iter_lines():
                    lines.extend([line] if line else [])
                    if len(lines) == 3:
                        stop.set()
        finally:
            stop.set()

    readers: list[threading.Thread] = []

    def on_ready(url: str) -> None:
        readers.append(threading.Thread(target=read, args=(url,)))
        readers[0].start()

    said: list[str] = []
    assert Supervisor(config, said.append, on_ready=on_ready).run(stop) == 0, said
    readers[0].join(30)
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "a" * PIECES
    state = read_state(config.run_dir)
    assert state is not None
    ends = {name: child.last_exit for name, child in state.children.items()}
    assert all(end is not None and end.signal is None and end.code == 0 for end in ends.values()), ends
