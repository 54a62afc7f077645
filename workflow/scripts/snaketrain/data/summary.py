"""The summary of prepared data, at the end of the log of the job that prepared it."""

from snaketrain.labels import label_kind
from snaketrain.runtime.strict_json import JsonObject


def show(report: JsonObject) -> None:
    if "datasets" in report:
        for split, facts in report["splits"].items():
            items = "a stream" if facts.get("stream") else f"{facts['examples']:>9} items"
            print(f"  {split:5} {items} of {report['datasets'][split]['use']}: {facts.get('fields', {})}")
        return
    print(f"\n{report['name']}: " + ", ".join(f"{n} rows of {source}" for source, n in report["rows"].items()))
    tally = label_kind(report["label_kind"]).tally
    for split, facts in report["splits"].items():
        kind = "unlabelled" if not facts["labelled"] else tally.summary(report["label_names"], facts)
        mean = facts["tokens"] / max(1, facts["examples"])
        print(f"  {split:5} {facts['examples']:>9} examples, {mean:.1f} tokens on average, {facts['longest']} at most; {kind}")
    for case in report["odd"].values():
        if case["count"]:
            print(f"warning: {report['name']}: {case['count']} {case['what']}")
            for first in case["first"]:
                print(f"  {first}")
    print()
