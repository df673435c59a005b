"""The fenced blocks of the documentation, and what is to be done with each.

A fence says the language, and behind it how the block is tested:

    ```console                      commands, each after `$ `, run in bash one after the other; below each what it prints
    ```console not-run: REASON      commands that are read only: the reason is counted
    ```console cluster              commands that a story of `make e2e` runs on its cluster
    ```console node                 commands that are run beside the daemon of an embedded node
    ```yaml                         a whole manifest, a file of Helm values or a configuration file
    ```yaml from: FILE              an excerpt of a file of this repository

In what a command prints `…` stands for any text of a line, and a line that is nothing else for any number of lines.
A command goes on in the next line after a backslash, and in lines that begin with `> `.
"""

import dataclasses
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]
LANGUAGES = {"console", "yaml", "json", "text", "toml", "rust", "python", "javascript", "sh", "Dockerfile"}
NOTES = ("not-run: ", "from: ", "cluster", "node")
# Pages that have a test of their own.
ELSEWHERE = {"docs/strategies/tutorial.md": "tests/tests/strategy_new.rs"}


class Fault(Exception):
    """Something in the documentation that is not so."""


@dataclasses.dataclass
class Block:
    page: str
    line: int
    language: str
    note: str
    text: str

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    @property
    def reason(self):
        """Why it is not run; empty when it is."""
        return self.note.removeprefix("not-run: ") if self.note.startswith("not-run: ") else ""

    @property
    def excerpt_of(self):
        return self.note.removeprefix("from: ") if self.note.startswith("from: ") else ""


@dataclasses.dataclass
class Command:
    line: int
    script: str
    output: list


def pages(root=ROOT):
    """Every page, by its path in the repository."""
    found = [path for path in (root / "docs").rglob("*.md")] + [path for path in (root / "examples").rglob("*.md")]
    found += [root / name for name in ("README.md", "CONTRIBUTING.md", "wit/README.md") if (root / name).exists()]
    return sorted(str(path.relative_to(root)) for path in found)


def read(page, root=ROOT):
    """The blocks of a page. A block without a fence, without a language or with a note that means nothing is a fault."""
    blocks, fence, before = [], None, ""
    for number, line in enumerate((root / page).read_text().splitlines(), 1):
        opened = re.fullmatch(r"( *)```(\S*) ?(.*)", line)
        if fence is None and opened:
            indent, language, note = opened.groups()
            if language not in LANGUAGES:
                raise Fault(f"{page}:{number}: the language of a block is one of {', '.join(sorted(LANGUAGES))}, not `{language}`")
            if note and not any(note == known or known.endswith(" ") and note.startswith(known) for known in NOTES):
                raise Fault(f"{page}:{number}: `{note}` says nothing about the block; known are {', '.join(NOTES)}")
            fence = (len(indent), Block(page, number, language, note, ""))
        elif fence and line.strip() == "```":
            blocks.append(fence[1])
            fence = None
        elif fence:
            fence[1].text += line[fence[0]:] + "\n"
        elif line.startswith("    ") and not before.strip() and not re.match(r" *([-*]|\d+\.) ", line):
            raise Fault(f"{page}:{number}: a block without a fence is tested by nobody; put it between ```")
        before = line
    if fence:
        raise Fault(f"{fence[1].place}: the block does not end")
    return blocks


def commands(block):
    """The commands of a console block, each with what it prints."""
    found, goes_on = [], False
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if goes_on or line.startswith("> "):
            found[-1].script += "\n" + (line if goes_on else line[2:])
        elif line.startswith("$ "):
            found.append(Command(number, line[2:], []))
        elif found:
            found[-1].output.append(line.rstrip())
            continue
        else:
            raise Fault(f"{block.page}:{number}: output of no command; a command begins with `$ `")
        goes_on = line.endswith("\\")
    return found


def difference(expected, printed):
    """Why what was printed is not what is expected; empty when it is."""
    expected = [line for line in expected]
    while expected and not expected[-1]:
        expected.pop()
    pattern = ""
    for line in expected:
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part) for part in line.split("…")) + r"[ \t]*\n"
    text = "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())
    if re.fullmatch(pattern, text):
        return ""
    return "documented:\n" + "".join(f"    {line}\n" for line in expected) + "printed:\n" + "".join(f"    {line}\n" for line in text.splitlines())


if __name__ == "__main__":
    # All blocks of all pages, as JSON.
    every = [block for page in pages() for block in read(page)]
    print(json.dumps([{**dataclasses.asdict(block), "place": block.place} for block in every]))
