"""Importing a file: what it tells of becomes requests and turns that the running loops find, and judge, and train.

Ids are made from content, so that a file that is imported twice, or one that goes on where another ended, adds what
is new and nothing else; and an answer that is here already, served or imported, is not taken again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.rollout.client_rules import ClientRules
from openclaw_rl.rollout.lineage import ContextHasher, context_hash, context_hashes, stem_hash
from openclaw_rl.sessions.belonging import Belonging, Belongings
from openclaw_rl.sessions.document import Document
from openclaw_rl.sessions.foreign import belonging_to, started_over
from openclaw_rl.sessions.reading import FileError, Told, ToldTurn, read_file
from openclaw_rl.sessions.reconstruct import Reconstructor
from openclaw_rl.store import Store
from openclaw_rl.store.archive import Known, Row, SessionRows, TurnRows
from openclaw_rl.store.rows import Fingerprint, request_values, turn_values
from openclaw_rl.types import (
    ExclusionReason,
    FinishReason,
    Message,
    Request,
    SamplingParams,
    Turn,
    TurnState,
    TurnType,
)

_STEP_S = 1e-6
"""Between two requests of one conversation, so that they have an order: a file gives no times."""
IMPORTED = "imported"
"""Why the session ended, and why a request that only brings a next state has no answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """What a file added. `turns_told` are all that it tells of; those not among `turns_added` were here already."""

    file: str
    sessions: tuple[str, ...]
    turns_told: int
    turns_added: int

    def text(self) -> str:
        """One line for a person."""
        here = self.turns_told - self.turns_added
        return (
            f"{self.file}: {self.turns_added} turns added in {len(self.sessions)} "
            f"session{'' if len(self.sessions) == 1 else 's'}, {here} were here already"
        )

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def import_file(
    store: Store,
    config: Config,
    path: Path,
    *,
    key_id: str | None = None,
    user: str | None = None,
    reconstructor: Callable[[], Reconstructor] | None = None,
) -> Imported:
    """Import one file, whole or not at all.

    `key_id` and `user`: whose it will be; without them, our own exports stay whose they were, and the rest belongs to
    whoever asks without a key. `reconstructor` is asked for where something has to be tokenised; the configured
    model's by default.

    Raises:
        FileError: naming line and field; nothing was imported.
        ConfigError: the model's tokenizer cannot be had; or with a policy for each user it is not said whose.
    """
    whose = Belongings(config, key=key_id, user=user)
    found = read_file(path)
    rebuild = _Once(reconstructor or (lambda: Reconstructor.of(config.model)))
    ours = store.archive.deployment()
    rows = [_of_document(one, whose, ours, config, rebuild) for one in found if isinstance(one, Document)]
    told = [one for one in found if isinstance(one, Told)]
    known_turns = 0
    if told:
        placing = Placing(store, config, whose.of_told(), rebuild)
        rows += placing.place(told)
        known_turns = placing.known_turns
    try:
        added = store.archive.put(rows)
    except PermissionError as error:
        raise FileError(f"{path}: {error}") from error
    whole = sum(turn.turn is not None for one in rows for turn in one.turns) + known_turns
    sessions = dict.fromkeys(str(one.session["session_id"]) for one in rows if one.turns)
    return Imported(file=str(path), sessions=tuple(sessions), turns_told=whole, turns_added=added)


class _Once:
    """Makes something when it is first asked for."""

    def __init__(self, make: Callable[[], Reconstructor]) -> None:
        self._make = make
        self._made: Reconstructor | None = None

    def __call__(self) -> Reconstructor:
        if self._made is None:
            self._made = self._make()
        return self._made


def _of_document(
    document: Document, belongings: Belongings, ours: str, config: Config, rebuild: Callable[[], Reconstructor]
) -> SessionRows:
    exported_here = document.deployment == ours
    whose = belongings.of_exported(document.rows.session, at_home=exported_here)
    return started_over(
        belonging_to(document.rows, whose),
        exported_here and whose.owner == str(document.rows.session.get("owner", "")),
        config.model.served_name,
        rebuild,
        nobodys=config.policies.owned and not whose.owner,
    )


# --- what others told --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Placed:
    """A told turn with what it is recognised by, and where it belongs."""

    turn: ToldTurn
    plain: tuple[Message | None, ...]
    prefixes: tuple[tuple[int, str], ...]
    digest: str


class Placing:
    """Gives told turns their ids, sessions and parents, as the gateway's recorder does for those that are served."""

    def __init__(self, store: Store, config: Config, whose: Belonging, rebuild: Callable[[], Reconstructor]) -> None:
        self._store = store
        self._config = config
        self._rules = ClientRules(config.rollout)
        self._key_id = whose.key_id
        self._owner = whose.owner
        self._rebuild = rebuild
        self._now = time.time()
        self._moments = 0
        self.known_turns = 0

    def place(self, told: Sequence[Told]) -> list[SessionRows]:
        """The rows of everything that is not here yet, in the order of the file."""
        read = [(one, [self._read(turn) for turn in one.turns]) for one in told]
        hashes = {digest for _, turns in read for turn in turns for digest in (turn.digest, *_digests(turn))}
        known = self._store.archive.known(self._key_id, sorted(hashes), self._owner)
        return [self._session(one, turns, known) for one, turns in read if turns]

    def _read(self, turn: ToldTurn) -> _Placed:
        plain = tuple(self._rules.plain(turn.messages))
        return _Placed(
            turn=turn,
            plain=plain,
            prefixes=tuple(context_hashes(plain)),
            digest=context_hash(plain, turn.answer),
        )

    def _session(self, told: Told, turns: Sequence[_Placed], known: dict[str, Known]) -> SessionRows:
        """One conversation's rows; `known` learns the turns in it, for the conversations after it."""
        session_id = self._session_id(told, turns, known)
        opened = self._moment()
        added: list[TurnRows] = []
        for placed in turns:
            if placed.digest in known:
                self.known_turns += 1
            else:
                turn = self._turn(placed, session_id, known)
                added.append(turn)
                self._take_in(known, placed.digest, turn)
        for placed in turns:
            added += self._reaction(placed, known)
        session: Row = {
            "session_id": session_id,
            "key_id": self._key_id,
            "client_session_id": told.session_id,
            "created_at": opened,
            "last_active_at": self._moment(),
            "ended_at": self._moment(),
            "end_reason": IMPORTED,
            "owner": self._owner,
        }
        return SessionRows(session=session, turns=tuple(added))

    def _session_id(self, told: Told, turns: Sequence[_Placed], known: dict[str, Known]) -> str:
        """That of a turn which is here already; else one made from its name, or from its first answer."""
        for placed in turns:
            for digest in (placed.digest, *reversed(_digests(placed))):
                if digest in known:
                    return known[digest].session_id
        if told.session_id is not None:
            here = self._store.sessions.find(self._key_id, told.session_id, self._owner)
            return here or self._new_id("session", told.session_id)
        return self._new_id("opening", turns[0].digest)

    def _new_id(self, kind: str, content: str) -> str:
        """Made from whose it is and what: two users of one key may have had the same conversation."""
        of_user = (f"{kind} of user", self._key_id, self._owner, content)
        return _id(*of_user) if self._owner else _id(kind, self._key_id, content)

    def _turn(self, placed: _Placed, session_id: str, known: dict[str, Known]) -> TurnRows:
        told = placed.turn
        parent = next((known[digest] for _, digest in reversed(placed.prefixes) if digest in known), None)
        start = next((index for index, digest in reversed(placed.prefixes) if digest in known), 0)
        new = tuple(message for message in placed.plain[start:] if message is not None) if parent else ()
        rule = self._rules.side_rule(placed.plain) if told.turn_type is None else None
        request = Request(
            turn_id=_id("turn", session_id, placed.digest),
            session_id=session_id,
            key_id=self._key_id,
            parent_turn_id=parent.turn_id if parent and new else None,
            turn_type=told.turn_type or (TurnType.MAIN if rule is None else TurnType.SIDE),
            messages=told.messages,
            tools=told.tools,
            new_messages=new,
            session_done=False,
            model=self._config.model.served_name,
            side_rule=rule,
            created_at=self._moment(),
            owner=self._owner,
        )
        return TurnRows(request=self._request_row(request, placed), turn=self._turn_row(request, placed))

    def _request_row(self, request: Request, placed: _Placed) -> Row:
        body = ContextHasher(placed.plain).hexdigest()
        stem = stem_hash(placed.plain, placed.prefixes)
        return {**request_values(request, Fingerprint(body_hash=body, stem_hash=stem)), "status": "served"}

    def _turn_row(self, request: Request, placed: _Placed) -> Row:
        told = placed.turn
        refused = not told.trainable and request.turn_type is TurnType.MAIN  # rollout knows what a side turn is
        tokens = self._rebuild().tokens(told.messages, told.tools, told.answer)
        turn = Turn(
            request=request,
            answer=told.answer,
            tokens=tokens,
            sampling=SamplingParams(max_tokens=max(1, len(tokens.response_ids))),
            finish_reason=FinishReason.TOOL_CALLS if told.answer.get("tool_calls") else FinishReason.STOP,
            state=TurnState.EXCLUDED if refused else TurnState.SERVED,
            reason=ExclusionReason.NOT_TRAINABLE if refused else None,
            reconstructed=True,
            served_at=self._moment(),
        )
        chain = {"chain_id": turn.turn_id, "extends_parent": None if request.parent_turn_id is None else False}
        return {**turn_values(turn, placed.digest), **chain}

    def _reaction(self, placed: _Placed, known: dict[str, Known]) -> list[TurnRows]:
        """A request without an answer that brings a turn its next state, where no other in the record does."""
        told, turn = placed.turn, known[placed.digest]
        if told.next_state is None or turn.reacted:
            return []
        new = tuple(message for message in self._rules.plain(told.next_state) if message is not None)
        messages = (*told.messages, told.answer, *told.next_state)
        request = Request(
            turn_id=_id("reaction", turn.session_id, placed.digest),
            session_id=turn.session_id,
            key_id=self._key_id,
            parent_turn_id=turn.turn_id,
            turn_type=TurnType.MAIN,
            messages=messages,
            tools=told.tools,
            new_messages=new,
            session_done=False,
            model=self._config.model.served_name,
            created_at=self._moment(),
            owner=self._owner,
        )
        known[placed.digest] = replace(turn, reacted=True)
        return [
            TurnRows(request={**self._row_of_reaction(request), "status": "failed", "error": IMPORTED}, turn=None)
        ]

    def _row_of_reaction(self, request: Request) -> Row:
        plain = self._rules.plain(request.messages)
        stem = stem_hash(plain, context_hashes(plain))
        return request_values(request, Fingerprint(body_hash=ContextHasher(plain).hexdigest(), stem_hash=stem))

    def _take_in(self, known: dict[str, Known], digest: str, rows: TurnRows) -> None:
        request = rows.request
        known[digest] = Known(turn_id=rows.turn_id, session_id=request["session_id"], reacted=False)
        if request["brings_feedback"]:
            for other, turn in known.items():
                if turn.turn_id == request["parent_turn_id"]:
                    known[other] = replace(turn, reacted=True)

    def _moment(self) -> float:
        self._moments += 1
        return self._now + self._moments * _STEP_S


def _digests(placed: _Placed) -> list[str]:
    return [digest for _, digest in placed.prefixes]


def _id(*parts: str) -> str:
    """32 hexadecimal digits made from these."""
    return blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
