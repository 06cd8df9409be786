"""Every fault of ``faults.py`` measured without us, and ``docs/upstream.md`` printed from that.

python benchmarks/atlas/upstream.py [TYPE ...] [--print]
"""

from __future__ import annotations

import argparse
import json
import warnings
from importlib.metadata import version
from pathlib import Path

from weighbridge.tests.support.atlas import upstream
from weighbridge.tests.support.atlas.upstream_page import cases, write_page

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "upstream.json"
PACKAGES = ("mlx-lm", "mlx", "transformers", "torch")


def main() -> None:
    """Measure, write the result and print the page from it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", metavar="TYPE", nargs="*")
    parser.add_argument("--print", action="store_true", help="measure nothing")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else {}
    for fault, layout in () if options.print else cases():
        if not options.kinds or fault.kind in options.kinds:
            rows[f"{fault.kind}-{layout}"] = upstream.measure(fault, layout)._asdict()
            print(fault.kind, layout, rows[f"{fault.kind}-{layout}"], flush=True)
    names = [f"{fault.kind}-{layout}" for fault, layout in cases()]
    result = {"versions": {name: version(name) for name in PACKAGES}}
    result["rows"] = {name: rows[name] for name in names if name in rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    write_page(RESULT, ROOT / "docs" / "upstream.md")


if __name__ == "__main__":
    main()
