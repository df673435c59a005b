#!/usr/bin/env python3
"""Tells the stories of a book on a cluster: run.py [NAME...], all of them without names. Prints each by name with its time, and
the count at the end; the exit code is 0 when all hold.

Environment: KUBECONFIG      the cluster
             BOOK            the module with the stories                        (stories)
             NODE            the node that they are told on                     (dracpu-node)
             PATIENCE        how many times slower than a real node it is       (1)
             IMAGE           the driver's image as the node has it
             STRATEGY        the component file of examples/highest-first; STRATEGY_IMAGE: an image that holds it
             HELM, KUBECTL   the programs                                       (helm, kubectl)
             CLUSTER_DIR     the directory of cluster.sh, for stories that stop parts of the node
             SOAK            how long nothing may happen, in seconds            (30)
"""

import importlib
import os
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import driver
from kube import NAMESPACE, Failure, apply, delete, get


def main(names):
    book = importlib.import_module(os.environ.get("BOOK", "stories")).STORIES
    chosen = [story for story in book if not names or story.__name__ in names]
    unknown = set(names) - {story.__name__ for story in chosen}
    if unknown:
        sys.exit(f"no such story: {', '.join(sorted(unknown))}; there are\n" + "\n".join(one.__name__ for one in book))
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, namespace=None)
    failed = []
    for story in chosen:
        begun = time.monotonic()
        try:
            if hasattr(story, "values"):
                driver.install(story.values)
            story()
            outcome = "ok"
        except Exception as failure:
            outcome = "FAILED"
            failed.append(story.__name__)
            words = str(failure) if isinstance(failure, Failure) else traceback.format_exc()
            print(f"    {words}\n    the driver's last words:\n{last_words()}", flush=True)
            clean_up()
        print(f"story {story.__name__.replace('_', ' ')} ... {outcome} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"\nstories: {len(chosen) - len(failed)} passed, {len(failed)} failed, 0 skipped", flush=True)
    return 1 if failed else 0


def last_words():
    try:
        return driver.logs(tailLines=15)
    except Exception as failure:
        return f"none: {failure}"


def clean_up():
    """A failed story must not spoil the next."""
    try:
        driver.install()  # first: without a driver no pod with a claim ends
        for kind in ("pods", "resourceclaims", "resourceclaimtemplates"):
            delete(kind, *[one["metadata"]["name"] for one in get(kind)])
    except Exception as failure:
        print(f"    cannot clean up: {failure}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
