"""Ports and addresses, settled before any process starts."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Set
from urllib.parse import urlsplit

from openclaw_rl.config import Config
from openclaw_rl.config_base import LOOPBACK
from openclaw_rl.config_sources import ConfigError

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def base_url(host: str, port: int) -> str:
    """`http://host:port`, with an address that can be connected to where `host` stands for all of them."""
    reachable = _EVERY_ADDRESS.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def resolve_port(host: str, port: int, key: str, *, option: str = "port") -> int:
    """`port`, or a free one where it is 0. `key` is the section that names host and port, by its `option`.

    The port is free now and could be taken before its process binds it; that process would then end with an
    error that names it, and `up` again takes another.

    Raises:
        ConfigError: if the port is taken or the host is no address of this machine; `key` is named.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        free = "port 0 takes" if option == "port" else "without it each takes"
        raise ConfigError(
            f"cannot bind {key}.host {host}, {key}.{option} {port}: {error.strerror or error}; {free} a free one"
        ) from error


def resolve_ports(config: Config) -> Config:
    """The same tree with real ports for the gateway and the engine, and for each of its replicas.

    Raises:
        ConfigError: if one cannot be bound, or both are the same.
    """
    serving = resolve_port(config.serving.host, config.serving.port, "serving")
    said = config.engine.replica_ports
    ports = tuple(resolve_port(config.engine.host, one, "engine", option="replica_ports") for one in said)
    engine = ports[0] if ports else resolve_port(config.engine.host, config.engine.port, "engine")
    if serving in {engine, *said}:
        raise ConfigError(f"serving.port and {'engine.replica_ports' if said else 'engine.port'} are both {serving}")
    servers = _ports_of_servers(config)
    if clash := servers & {serving, engine, *said}:
        raise ConfigError(
            f"engine.urls names port {min(clash)} of this machine, and serving.port, engine.port or "
            "engine.replica_ports does: a server that is away now could not come back there"
        )
    found: dict[str, object] = {"port": engine}
    if config.engine.count > 1 and config.engine.kind != "openai":
        found["replica_ports"] = _replica_ports(config, engine, taken=servers | {serving})
    return config.model_copy(
        update={
            "serving": config.serving.model_copy(update={"port": serving}),
            "engine": config.engine.model_copy(update=found),
        }
    )


def engine_addresses(config: Config) -> Mapping[str, str]:
    """Where the gateway asks each of several engines, by the URL that people know it by; empty where there is one.

    An upstream is asked itself, and a server at `engine.urls` through the process here that speaks for it.
    """
    engine = config.engine
    if engine.kind == "openai":
        return {url: url for url in engine.urls}
    own = [base_url(engine.host, port) for port in engine.replica_ports]
    return dict(zip(engine.urls or own, own, strict=True)) if own else {}


def _ports_of_servers(config: Config) -> frozenset[int]:
    """The ports of this machine at which engines of others listen, or will again."""
    addresses = (urlsplit(url) for url in config.engine.urls)
    return frozenset(one.port for one in addresses if one.port is not None and one.hostname in LOOPBACK)


def _replica_ports(config: Config, first: int, *, taken: Set[int]) -> tuple[int, ...]:
    """Ports that differ: those that are asked for, or the engine's own for the first and free ones for the others."""
    ports = [*config.engine.replica_ports] or [first]
    while len(ports) < config.engine.count:
        port = resolve_port(config.engine.host, 0, "engine")
        if port not in taken and port not in ports:
            ports.append(port)
    return tuple(ports)
