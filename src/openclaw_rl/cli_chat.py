"""`openclaw-rl chat`: a conversation with the running policy, over the public API like any other client."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import openai
from openai.types.chat import ChatCompletionChunk
from rich.console import Console

from openclaw_rl.config import ApiKey, Config
from openclaw_rl.config_sources import ConfigError, load_json
from openclaw_rl.serving.gateway.auth import KeyRing
from openclaw_rl.serving.gateway.errors import GatewayError
from openclaw_rl.serving.gateway.owners import OwnerNames
from openclaw_rl.supervision.state import child_config_path, read_state

OK, FAILED = 0, 1
HELP = "/end starts a new conversation, /quit leaves; Ctrl-C cuts an answer short"
REQUEST_TIMEOUT_S = 600.0


@dataclass(kw_only=True)
class Conversation:
    """What has been said, the session that the gateway gave it, and the version that answered last."""

    messages: list[dict[str, str]] = field(default_factory=list)
    session_id: str | None = None
    version: str | None = None


def chat(
    run_dir: Path, *, model: str | None, temperature: float, max_tokens: int | None, user: str | None = None
) -> int:
    """Talk until `/quit` or the end of input; the exit code. `user`: whose policy answers (`policies.per = user`).

    Raises:
        ConfigError: `user` has no meaning here, or is no name.
    """
    console = Console(highlight=False, soft_wrap=True)
    state = read_state(run_dir.expanduser())
    if state is None or not state.alive:
        errors = Console(stderr=True, highlight=False, soft_wrap=True)
        start = f"openclaw-rl up recipes/combine.toml --run-dir {run_dir}"
        errors.print(f"openclaw-rl: no deployment in {run_dir}: start one with: {start}", markup=False)
        return FAILED
    config = load_json(child_config_path(run_dir.expanduser()))
    key = _key(config.serving.api_keys)
    client = openai.OpenAI(
        base_url=state.url,
        api_key=key,
        max_retries=0,
        timeout=REQUEST_TIMEOUT_S,
        http_client=openai.DefaultHttpxClient(
            trust_env=False,  # the gateway is on this machine, behind no proxy
            headers=[] if user is None else [(b"X-User-Id", user_header(user, config, key))],
        ),
    )
    options: dict[str, Any] = {"model": model or config.model.served_name, "temperature": temperature}
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    console.print(f"{options['model']} at {state.url}. {HELP}.", style="dim", markup=False)
    if user is None and config.policies.per == "user" and not config.serving.api_keys:
        console.print("Nobody's policy learns from this: --user NAME says whose is to.", style="dim")
    with client:
        return Talk(client, console, options).run()


def user_header(user: str, config: Config, key: str) -> bytes:
    """What `X-User-Id` is to hold, by the gateway's own rule: else it refuses every question, or hears no name.

    Raises:
        ConfigError: there is no policy for each user, nothing is left of the name, or the gateway does not take it.
    """
    if config.policies.per != "user":
        why = "it is that of the API key" if config.policies.owned else "there is one policy for all"
        raise ConfigError(f"--user has no meaning with policies.per = {config.policies.per}: {why}")
    name = user.strip(" \t")
    if not name:
        raise ConfigError("--user: a name is wanted, and this one is blank")
    try:
        header = name.encode()
        principal = KeyRing(config.serving.api_keys).principal(f"Bearer {key}".encode())
        names = [one.name for one in config.serving.api_keys]
        OwnerNames(config.policies, names).owner(principal, header=header.decode("latin-1"))
    except UnicodeEncodeError:
        raise ConfigError("--user: the name must be UTF-8") from None
    except GatewayError as error:
        raise ConfigError(f"--user: {error.message}") from None
    return header


def _key(keys: Sequence[ApiKey]) -> str:
    """A configured key to talk with: one that is trained on, for a chat is meant to teach, if there is one."""
    chosen = next((key for key in keys if key.train), keys[0] if keys else None)
    return "none" if chosen is None else chosen.key.get_secret_value()


class Talk:
    """The loop of a terminal conversation."""

    def __init__(self, client: openai.OpenAI, console: Console, options: dict[str, Any]) -> None:
        self._client = client
        self._console = console
        self._options = options
        self._conversation = Conversation()

    def run(self) -> int:
        """Ask and answer until the person leaves."""
        if sys.stdin.isatty():
            import readline  # noqa: F401 (gives input() its line editing)
        while True:
            try:
                text = self._console.input("[bold]you>[/bold] ").strip()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                text = "/quit"
            if text == "/quit":
                self._end_session()
                return OK
            if text == "/end":
                self._end_session()
                self._conversation = Conversation(version=self._conversation.version)
                self._say("a new conversation")
            elif text.startswith("/"):
                self._say(HELP)
            elif text:
                self._answer(text)

    def _end_session(self) -> None:
        """Tell the gateway that nothing follows, so that the last answer does not wait for a reaction."""
        session = self._conversation.session_id
        if session is None:
            return
        try:
            self._client.post(f"/sessions/{quote(session, safe='')}/end", cast_to=object)
        except openai.APIError:
            self._say("the gateway was not told that the conversation is over; it will notice by itself")

    def _answer(self, text: str) -> None:
        """Send what was typed and print the answer as it comes. Without an answer, it counts as not said."""
        conversation = self._conversation
        messages = [*conversation.messages, {"role": "user", "content": text}]
        answer = ""
        try:
            for piece in self._stream(messages):
                answer += piece
                self._console.print(piece, end="", markup=False)
            self._console.print()
        except KeyboardInterrupt:
            self._console.print()
            self._say("cut short; the question is forgotten")
            return
        except openai.APIConnectionError:
            self._say("the gateway cannot be reached; openclaw-rl status says more")
            return
        except openai.APIError as error:
            self._say(f"no answer: {error.message}")
            return
        conversation.messages = [*messages, {"role": "assistant", "content": answer}]

    def _stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        conversation = self._conversation
        headers = {"X-Session-Id": conversation.session_id} if conversation.session_id else {}
        raw = self._client.chat.completions.with_raw_response.create(
            messages=messages,  # type: ignore[arg-type]
            stream=True,
            extra_headers=headers,
            **self._options,
        )
        conversation.session_id = raw.headers.get("X-Session-Id", conversation.session_id)
        self._note_version(raw.headers.get("X-Policy-Version"))
        with cast("openai.Stream[ChatCompletionChunk]", raw.parse()) as stream:
            for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content

    def _note_version(self, header: str | None) -> None:
        """Say so when another version answers than did before."""
        if header is None:
            return
        version = version_name(header)
        before = self._conversation.version
        if before is not None and version != before:
            self._say(f"learned from you: {version}" if version != "base" else "this is the base again")
        self._conversation.version = version

    def _say(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False)


def version_name(header: str) -> str:
    """`policy-v12` or `base`, whether the header holds a name or a number."""
    if not header.isdigit():
        return header
    return "base" if int(header) == 0 else f"policy-v{int(header)}"
