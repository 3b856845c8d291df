"""What a tool's result says about the call that caused it, by rule: a small model cannot read exit codes.

The first rule that applies decides: no output says nothing (0); an explicit exit status; a JSON object's own
error or success field; the words of failure; otherwise a result that came back is a success.
"""

from __future__ import annotations

import json
import re
from typing import Any

_EXIT = re.compile(
    r"\b(?:exit(?:ed)?(?: with)?(?: code| status)?|return(?:ed)? code|status code|code)\s*[:=]?\s*(-?\d+)\b",
    re.IGNORECASE,
)
_EXIT_LINE = re.compile(r"^\W*(?:(?:process |command )?exit|return|finished|exited)\b", re.IGNORECASE)
_FAILURE = re.compile(
    r"^\s*(?:\w+[/\w.-]*: )?(?:fatal|panic|uncaught|unhandled|traceback)\b"
    r"|^\s*(?:[\w.]*(?:Error|Exception)|ERROR|Error|error|E)\b\s*[:\[(]"
    r"|:\s*(?:fatal )?error\s*[:\[]|\berror\[\w+\]|\bError \d+\b|\bBUILD FAILED\b|\bFAILED\b|\bFAILURES?\b"
    r"|\bcommand not found\b|\bno such file or directory\b|\bpermission denied\b|\baccess denied\b"
    r"|\bnot recognized as an?\b|\bsegmentation fault\b|\bcore dumped\b|^\s*(?:killed|aborted)\s*$"
    r"|\btimed out\b|\btimeout (?:exceeded|expired)\b|\bcould not (?:resolve|connect|find|open)\b"
    r"|\bcannot (?:connect|access|find|open|stat|move|copy|remove|create|read|write)\b|\bfailed to \w+"
    r"|\b(?:was|were|is) not found\b|^\s*not found\b|\binvalid (?:arguments?|parameters?|input|json|option)\b"
    r"|\bmissing required\b|\bconnection refused\b|\b(?:unauthorized|forbidden)\b|\binternal server error\b"
    r"|^\s*(?:HTTP(?:/[\d.]+)?\s+)?[45]\d\d [A-Z][a-z]+",
    re.MULTILINE | re.IGNORECASE,
)
_COUNTED = re.compile(
    r"\b([1-9]\d*)\s+(?:tests? |checks? |specs? )?(?:failed|failures?|failing|errors?)\b", re.IGNORECASE
)
_HARMLESS = re.compile(
    r"\b(?:0|no|zero) (?:errors?|failures?|failed)\b|\b(?:errors?|failures?|failed)\s*[:=]\s*(?:0|none)\b", re.I
)
_GOOD_STATUS = frozenset({"ok", "success", "succeeded", "done", "completed", "healthy", "up", "true", "passed"})
_BAD_STATUS = frozenset({"error", "failed", "failure", "fail", "denied", "timeout"})
_ERROR_KEYS = ("error", "errors", "exception", "stderr_error")


def _json_verdict(value: Any) -> int | None:
    """Read a JSON object's own word on whether it worked; None where it does not say."""
    if not isinstance(value, dict):
        return None
    for key in ("exit_code", "exitCode", "returncode", "code"):
        if isinstance(value.get(key), int) and key != "code":
            return 1 if value[key] == 0 else -1
    if any(value.get(key) for key in _ERROR_KEYS) or value.get("isError") is True or value.get("is_error") is True:
        return -1
    for key in ("success", "ok", "succeeded"):
        if isinstance(value.get(key), bool):
            return 1 if value[key] else -1
    status = str(value.get("status", "")).lower()
    if status in _BAD_STATUS:
        return -1
    return 1 if status in _GOOD_STATUS or value else None


def _exit_status(text: str) -> int | None:
    """The last exit status that stands in a line about exiting, or None."""
    for line in reversed(text.splitlines()):
        match = _EXIT.search(line)
        if match and (_EXIT_LINE.search(line) or "exit" in line.lower()):
            return int(match.group(1))
    return None


def tool_verdict(content: str) -> int:
    """Judge one tool result: +1 it worked, -1 it failed, 0 it says nothing.

    The last exit status named in the text outweighs its words, as it does in a shell.
    """
    text = content.strip()
    if text in {"", "null", "None", "(no output)", "[]", "{}"}:
        return 0
    try:
        verdict = _json_verdict(json.loads(text))
    except ValueError:
        verdict = None
    else:
        return 1 if verdict is None else verdict
    status = _exit_status(text)
    if status is not None:
        return 1 if status == 0 else -1
    rest = _HARMLESS.sub(" ", text)
    return -1 if _FAILURE.search(rest) or _COUNTED.search(rest) else 1


def tools_verdict(contents: list[str]) -> int:
    """Judge the results of one answer's calls together: one failure makes the answer's calls a failure."""
    verdicts = [tool_verdict(content) for content in contents]
    if -1 in verdicts:
        return -1
    return 1 if 1 in verdicts else 0
