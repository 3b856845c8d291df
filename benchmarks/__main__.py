"""`make bench`: run the benchmarks and print their figures: JSON with the date and the machine, or a table.

make bench ARGS="serving --parallel 4"
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from benchmarks import engine, gateway, hints, memory, poison, resume, serving, training, update


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark that is named, `serving` without a name."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    benchmarks = parser.add_subparsers(dest="benchmark")
    modules = {
        "engine": engine,
        "gateway": gateway,
        "hints": hints,
        "memory": memory,
        "poison": poison,
        "resume": resume,
        "serving": serving,
        "training": training,
        "update": update,
    }
    for name, module in modules.items():
        added = benchmarks.add_parser(name, help=(module.__doc__ or "").partition("\n")[0])
        module.add_arguments(added)
        as_json = getattr(module, "as_json", lambda figures: figures)
        added.set_defaults(run=module.run, table=getattr(module, "table", None), as_json=as_json)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0].startswith("--"):
        arguments.insert(0, "serving")
    parsed = parser.parse_args(arguments)
    figures = {
        "benchmark": parsed.benchmark,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        **parsed.run(parsed),
    }
    if parsed.table is not None and not parsed.json:
        print(parsed.table(figures))
    else:
        print(json.dumps(parsed.as_json(figures), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
