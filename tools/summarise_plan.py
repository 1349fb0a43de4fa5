"""Read `kvlayout plan DOC --json` from standard input and print what it says in a few lines (used by `make demo`)."""

from __future__ import annotations

import json
import sys
from collections import Counter


def main() -> None:
    """Print how many layers each rule took and how each group is served."""
    plan = json.load(sys.stdin)
    layers = plan["layers"].values()
    for (verdict, rule), count in sorted(Counter((x["verdict"], x["rule"] or "-") for x in layers).items()):
        print(f"{count:5} layers  {verdict:9} {rule}")
    for group in plan["groups"]:
        page, tokens = group["page_bytes"], group["block_tokens"]
        print(f"group {group['index']}: {group['disposition']}, {tokens} tokens a block, {page} bytes a page")
    print(f"{len(plan['errors'])} errors")


if __name__ == "__main__":
    main()
