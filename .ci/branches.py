"""Fail where too few branches are taken, lines not counted: `branches.py REPORT LEAST`, in JSON and in per cent."""

import json
import sys
from pathlib import Path

report, least = Path(sys.argv[1]), float(sys.argv[2])
totals = json.loads(report.read_text(encoding="utf-8"))["totals"]
share = 100 * totals["covered_branches"] / totals["num_branches"]
print(f"branches alone: {share:.1f} % of {totals['num_branches']}, at least {least:g} %")
sys.exit(share < least)
