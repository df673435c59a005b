#!/usr/bin/env python3
"""Runs the commands of the documentation and compares what they print with what the pages say.

    run_commands.py BIN [--node DIR] [--root DIR] [PAGE...]

BIN is the driver's program: `dracpu` in commands. Commands run in a directory of their own, in which the repository's files
are, and which is thrown away. Without --node: all blocks but those that need a node or a cluster. With it: those that
need a node; DIR is the directory of an embedded node whose daemon runs, and `kubectl … exec … -- /dracpu` asks that daemon too.

Prints each fault, what is not run and why, and at the end `N commands run, M on a cluster, K not run, F failed`.
"""

import argparse
import collections
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import blocks

# The driver on the node, and in its pod.
ON_THE_NODE = """#!/bin/sh
more=--kubelet-root-dir={node}/k
[ "$1" != topology ] || more="$more --sysfs-root={node}/sys"
exec {binary} "$@" $more
"""
IN_THE_POD = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
[ "$1" = /dracpu ] || { echo "only /dracpu is there"; exit 1; }
shift
exec dracpu "$@"
"""


def workplace(directory, binary, root, node):
    """A directory with the repository's files, and a PATH on which the driver is."""
    here = pathlib.Path(directory) / "here"
    programs = pathlib.Path(directory) / "bin"
    here.mkdir()
    programs.mkdir()
    for entry in root.iterdir():
        if entry.name not in ("target", ".git"):
            (here / entry.name).symlink_to(entry)
    if node:
        script(programs / "dracpu", ON_THE_NODE.format(node=node, binary=binary))
        script(programs / "kubectl", IN_THE_POD)
    else:
        (programs / "dracpu").symlink_to(binary)
    # It builds what is built already.
    script(programs / "make", f"""#!/bin/sh\n[ "$*" = demo ] && exec {binary.with_name('demo')}\necho "only make demo is run"; exit 1\n""")
    return here, {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)


def run(command, here, env):
    """What a command prints; a fault when it fails."""
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command.script], cwd=here, env=env, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    if done.returncode != 0:
        raise blocks.Fault(f"ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--node", type=pathlib.Path)
    parser.add_argument("--root", type=pathlib.Path, default=blocks.ROOT)
    parser.add_argument("pages", nargs="*")
    arguments = parser.parse_intermixed_args()
    ran, failed, on_cluster, reasons = 0, 0, 0, collections.Counter()
    for page in arguments.pages or blocks.pages(arguments.root):
        if page in blocks.ELSEWHERE:
            continue
        directory = tempfile.mkdtemp(prefix="dracpu-docs-")
        try:
            here, env = workplace(directory, arguments.binary, arguments.root.resolve(), arguments.node)
            for block in blocks.read(page, arguments.root):
                if block.language == "sh":
                    raise blocks.Fault(f"{block.place}: commands stand in a console block")
                if block.language != "console":
                    continue
                commands = blocks.commands(block)
                if block.reason:
                    reasons[block.reason] += len(commands)
                elif block.note == "cluster":
                    on_cluster += len(commands)
                elif bool(arguments.node) == (block.note == "node"):
                    for command in commands:
                        ran += 1
                        try:
                            difference = blocks.difference(command.output, run(command, here, env))
                            if difference:
                                raise blocks.Fault(f"prints something else\n{difference}")
                        except (blocks.Fault, subprocess.TimeoutExpired) as fault:
                            failed += 1
                            print(f"FAIL {page}:{command.line}: `{command.script}` {fault}")
        except blocks.Fault as fault:
            failed += 1
            print(f"FAIL {fault}")
        finally:
            shutil.rmtree(directory)
    for reason, count in sorted(reasons.items()):
        print(f"not run: {count} ({reason})")
    print(f"{ran} commands run, {on_cluster} on a cluster, {sum(reasons.values())} not run, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
