#!/usr/bin/env python3
"""Holds the names in the documentation against those of the program, the chart and the Makefile, both ways.

    check_names.py BIN [--root DIR]

What a page names in code (`like this`, or in a block) must exist: metrics, flags, verbs, configuration keys, Helm values, options
of strategies, targets of make, tests, files, links. What exists must be named on the page that lists its kind. Prints each fault,
and at the end `N names checked, F failed`.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import blocks

# Flags of other programs that pages name.
OF_OTHERS = set("""
    --all-namespaces --dry-run --features --field-selector --for --from-file --ignore-daemonsets --install --lib --locked --namespace
    --no-deps --no-group-separator --nocapture --profile --raw --reset-then-reuse-values --reuse-values --set --since --test --timeout
    --flag --workspace --bins --stub-wasi --disable --wit-path --world --bin --tests --release --target
""".split())
# Words in camel case that are Kubernetes', the kubelet's, or of an example.
KUBERNETES = set("""
    allocatedResourcesStatus allowMultipleAllocations bindingConditions containerStatuses cpuManagerPolicy cpuManagerPolicyOptions
    cpuManagerReconcilePeriod deviceClassName distinctAttribute extendedResourceName imagePullPolicy kubeReserved matchAttribute
    memoryManagerPolicy nodeAllocatableResources nodeName requestPolicy reservedFor reservedSystemCPUs resourceClaimName
    resourceClaimTemplateName resources.claims resources.limits.memory resources.requests.cpu spec.nodeName status.allocation
    status.devices systemReserved topologyManagerPolicy topologyManagerScope validRange binaryData consumedCapacity shareID
    resources.limits requests.cpu capacity.requests configMap
""".split())


# Directories of a test cluster, beside those of the repository.
OF_A_CLUSTER = ("host/run", "host/var")


class Faults:
    def __init__(self):
        self.checked, self.failed = 0, 0

    def check(self, true, words):
        self.checked += 1
        if not true:
            self.failed += 1
            print(f"FAIL {words}")


class Program:
    """What the driver says of itself."""

    def __init__(self, binary):
        self.binary = binary
        self.metrics = {one["name"]: one for one in json.loads(self.ask("introspect", "metrics"))["metrics"]}
        self.verbs, self.flags = {}, set()
        self.look_at([])
        self.daemon_flags = set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]*)", self.ask("--help"), re.M)) - {"--help", "--version"}
        self.keys = self.known("turbo: 1\n")
        self.strategy_keys = self.known("strategies: [{turbo: 1}]\n")
        self.limit_keys = self.known("strategies: [{name: llc-first, limits: {turbo: 1}}]\n")
        listed = [line.lstrip("*+ ").split()[0] for line in self.ask("strategy", "list").splitlines()[1:]]
        self.strategies = {name: self.options(name) for name in listed}

    def ask(self, *words, stdin=None):
        done = subprocess.run([self.binary, *words], input=stdin, capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    def look_at(self, verb):
        """Verbs and flags of a verb and of those below it."""
        said = self.ask(*verb, "--help")
        self.flags |= set(re.findall(r"--[a-z][a-z-]*", said))
        below = re.search(r"^Commands:\n((?:  .*\n)+)", said, re.M)
        names = re.findall(r"^  ([a-z]\S*)", below.group(1), re.M) if below else []
        self.verbs[" ".join(verb)] = [name for name in names if name != "help"]
        for name in self.verbs[" ".join(verb)]:
            self.look_at([*verb, name])

    def known(self, config):
        """The keys that the answer to a wrong one lists."""
        said = self.ask("slices", "--machine", "small", "--config", "/dev/stdin", stdin=config)
        return re.search(r"known are ([^;\n]*)", said).group(1).strip().split(", ")

    def options(self, name):
        said = self.ask("strategy", "inspect", name)
        schema = json.loads(said[said.index("{"):])
        return schema.get("properties", {})


def values_of(schema, chart, place=""):
    """Helm values by their paths."""
    if "$ref" in schema:
        schema = chart["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    for key, value in schema.get("properties", {}).items():
        path = f"{place}{key}"
        yield path
        yield from values_of(value, chart, f"{path}.")
        yield from values_of(value.get("items", {}), chart, f"{path}[].")


def anchors(text):
    """Anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


class Page:
    def __init__(self, root, name):
        self.name, self.text = name, (root / name).read_text()
        self.blocks = blocks.read(name, root)
        self.prose = re.sub(r"^( *)```.*?^\1```$", "", self.text, flags=re.M | re.S)
        self.spans = [span.replace("\\|", "|") for span in re.findall(r"`([^`\n]+)`", self.prose)]
        self.console = [command.script for block in self.blocks if block.language == "console" for command in blocks.commands(block)]
        self.console += [block.text for block in self.blocks if block.language == "sh"]
        # Code: what is marked as such, and commands without their comments.
        self.code = self.spans + [re.sub(r"(?m) +# .*$", "", script) for script in self.console]


def check_metrics(faults, program, pages):
    for page in pages:
        for name in re.findall(r"\bdra_cpu_[a-z_]+|\bdracpu_(?!strategy_sdk\b)[a-z_]+", page.text):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            faults.check(name in program.metrics or base in program.metrics, f"{page.name}: no metric is called {name}")
    listed = dict(re.findall(r"^\| `(dra_cpu_\w+)` \| (.*)$", page_of(pages, "docs/metrics.md").text, re.M))
    for name, metric in program.metrics.items():
        labels = ", ".join(f"`{label}`" for label in metric["labels"])
        row = listed.get(name, "")
        faults.check(row.startswith(f"{metric['type']} | {labels}{' ' if labels else ''}|"), f"docs/metrics.md: the row of {name} is not `{metric['type']} | {labels}`: {row}")


def check_flags(faults, program, pages):
    for page in pages:
        for code in page.code:
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code):
                faults.check(flag in program.flags or flag in OF_OTHERS, f"{page.name}: `{code}`: nothing has the flag {flag}")
    told = set(re.findall(r"--[a-z][a-z-]*", page_of(pages, "docs/configuration.md").text))
    for flag in program.daemon_flags:
        faults.check(flag in told, f"docs/configuration.md does not tell of {flag}")


def check_verbs(faults, program, pages):
    for page in pages:
        for code in page.code:
            for words in re.findall(r"(?m)(?:^|\| |&& |-- /|bug/)dracpu((?: [a-z]+(?![\w./-]))+)", code):
                verb = []
                for word in words.split():
                    below = program.verbs.get(" ".join(verb), [])
                    if not below:
                        break
                    faults.check(word in below, f"{page.name}: `{code}`: dracpu {' '.join(verb)} has no verb {word}")
                    verb.append(word)
    told = " ".join(code for page in pages for code in page.code)
    for verb, below in program.verbs.items():
        if verb and not below:
            faults.check(f"dracpu {verb}" in told, f"no page tells of dracpu {verb}")


def check_keys(faults, program, pages):
    page = page_of(pages, "docs/configuration.md")
    rows = [row for row in re.findall(r"^\| `(\w+)` \|", page.text, re.M)]
    for key in rows:
        if key in program.strategies or key in ("packed",):
            continue
        faults.check(key in program.keys, f"{page.name}: the configuration has no key {key}")
    for key in program.keys:
        faults.check(key in rows or key == "apiVersion", f"{page.name} has no row for {key}")
    for key in [*program.strategy_keys, *program.limit_keys]:
        faults.check(f"`{key}`" in page.prose, f"{page.name} does not tell of {key}")


def check_values(faults, program, pages, chart):
    values = set(values_of(chart, chart))
    page = page_of(pages, "docs/installation.md")
    for value in values:
        top = value.split(".")[0].split("[")[0]
        if top in ("driverConfig", "strategies", "global", "resources", "seLinuxOptions", "tolerations", "affinity") or "[]" in value or value in ("image", "args", "rbac"):
            continue
        parts = value.split(".")
        told = f"`{value}`" in page.prose or re.search(rf"`{parts[0]}\b", page.prose) and re.search(rf"`(?:[^`]*\b)?{parts[-1]}\b", page.prose)
        faults.check(bool(told), f"{page.name} does not tell of the value {value}")
    known = values | {f"driverConfig.{key}" for key in program.keys} | set(program.keys) | set(program.strategy_keys) | set(program.limit_keys)
    known |= {f"driverConfig.{key}" for key in program.strategy_keys} | KUBERNETES | {"cpuConfig"} | {f"cpuConfig.{key}" for key in ("cpuset", "strategy", "options")}
    for page in pages:
        if page.name.startswith(("docs/dev/", "wit/", "docs/strategies/", "examples/", "CONTRIBUTING")):
            continue
        for span in page.spans:
            name = re.match(r"[a-z]+[A-Z]\w*(\.\w+)*$|(args|image|driverConfig|strategies)(\[\])?(\.\w+)+$", span.split(":")[0].strip())
            if name and "(" not in span and "=" not in span:
                word = name.group(0)
                faults.check(word in known or word in attributes(), f"{page.name}: `{span}`: nobody knows {word}")


def attributes(cache=[]):
    """Names of attributes, as the sources of devices and strategies write them."""
    if not cache:
        texts = [path.read_text() for place in ("host/src/device", "host/src/metadata", "host/topology/src", "strategies/llc-first/src", "host/src/dra")
                 for path in (blocks.ROOT / place).rglob("*.rs")]
        cache.append({word for text in texts for literal in re.findall(r'"([^"\n]*)"', text) for word in re.findall(r"\w+", literal)})
    return cache[0]


def check_attributes(faults, pages):
    for page in pages:
        for domain, name in re.findall(r"\b((?:llc-first\.)?dra\.cpu|resource\.kubernetes\.io|dra\.net)/([a-zA-Z]\w*)", page.text):
            faults.check(name in attributes() or name in ("cpu", "pcieRoot", "numaNode", "record", "v1"), f"{page.name}: nothing publishes {domain}/{name}")
        for name in re.findall(r'device\.attributes\["(?:[\w.-]+)"\]\.(\w+)', page.text):
            faults.check(name in attributes() or name == "numaNode", f"{page.name}: nothing publishes {name}")


def check_options(faults, program, pages):
    page = page_of(pages, "docs/strategies/built-in.md")
    for name, options in program.strategies.items():
        for option in options:
            faults.check(f"`{option}`" in page.text or f"`{option}:" in page.text, f"{page.name} does not tell of the option {option} of {name}")


def check_make(faults, pages, root):
    text = (root / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):.*##", text, re.M))
    told = set()
    for page in pages:
        for code in page.code:
            for words in re.findall(r"\bmake((?: [a-z][a-z0-9-]+)+)", code):
                for target in words.split():
                    told.add(target)
                    faults.check(target in targets, f"{page.name}: `{code}`: the Makefile has no target {target}")
    for target in targets - told:
        faults.check(False, f"no page tells of make {target}")


def check_tests(faults, pages, root):
    for page in pages:
        for code in page.code:
            for name in re.findall(r"--test ([\w-]+)", code):
                there = (root / f"tests/tests/{name}.rs").exists() or (root / f"tests/tests/{name}/main.rs").exists()
                faults.check(there, f"{page.name}: `{code}`: there is no test {name}")


def check_alerts_and_events(faults, pages, root):
    alerts = set(re.findall(r"alert: (\w+)", (root / "charts/dra-driver-cpu/files/rules.yaml").read_text()))
    reasons = set(re.findall(r'\("((?:CPUs|Claim)[A-Z]\w+)", "', (root / "host/src/events/object.rs").read_text()))
    for page in pages:
        for name in re.findall(r"`(DraCpu\w+)`", page.text):
            faults.check(name in alerts, f"{page.name}: no alert is called {name}")
        for name in re.findall(r"`((?:CPUs|Claim)[A-Z]\w+)`", page.text):
            faults.check(name in reasons, f"{page.name}: no event has the reason {name}")
    for page, names in (("docs/metrics.md", alerts), ("docs/operations.md", reasons)):
        for name in names:
            faults.check(f"`{name}`" in page_of(pages, page).text, f"{page} does not tell of {name}")


def check_doctor(faults, program, pages):
    """Ids of checks, in the order of the page's tables."""
    answer = program.ask("doctor", "-o", "json", "--kubelet-root-dir=/nonexistent")
    ids = [check["id"] for check in json.loads(answer[answer.index("{"):])["checks"]]
    page = page_of(pages, "docs/operations.md")
    told = [name for row in re.findall(r"^\| ((?:`[a-z-]+`(?:, )?)+) \|", page.text, re.M) for name in re.findall(r"`([a-z-]+)`", row)]
    shown = [name for block in page.blocks for name in re.findall(r"(?m)^([a-z-]+) +(?:ok|warning|failed|unknown) ", block.text)]
    faults.check(told == ids, f"{page.name}: the checks of dracpu doctor are {ids}, the table has {told}")
    faults.check(shown == ids, f"{page.name}: the checks of dracpu doctor are {ids}, its output shows {shown}")


def check_links(faults, pages, root):
    by_name = {page.name: page for page in pages}
    for page in pages:
        here = (root / page.name).parent
        for target in re.findall(r"\]\(([^)\s]+)\)", page.prose):
            if re.match(r"[a-z]+://", target):
                continue
            file, _, anchor = target.partition("#")
            path = pathlib.Path(os.path.normpath(here / file)) if file else root / page.name
            faults.check(path.exists(), f"{page.name}: the link {target} leads nowhere")
            if anchor and path.exists():
                name = str(path.relative_to(root))
                faults.check(name in by_name and anchor in anchors(by_name[name].text), f"{page.name}: {name} has no heading #{anchor}")
        for code in page.code:
            for path in re.findall(r"(?<![\w./~-])((?:docs|examples|tests|charts|host|strategies|wit|proto)/[\w./-]*\w)", code):
                faults.check((root / path).exists() or path.startswith(OF_A_CLUSTER) or bool(list(root.glob(f"{path}*"))), f"{page.name}: `{code}`: there is no {path}")
    told = {os.path.normpath(os.path.join(os.path.dirname(page.name), target.partition("#")[0])) for page in pages
            for target in re.findall(r"\]\(([^)\s:]+)\)", page.prose)}
    for page in pages:
        faults.check(page.name in told or page.name == "README.md" or page.name.startswith("examples/"), f"no page leads to {page.name}")
    for example in sorted((root / "examples").glob("*/*.yaml")):
        faults.check(str(example.relative_to(root)) in told, f"no page leads to {example.relative_to(root)}")


def check_excerpts(faults, pages, root):
    bare = lambda text: "\n".join(line.strip() for line in text.splitlines() if line.strip())
    for page in pages:
        for block in page.blocks:
            if block.excerpt_of:
                file = root / block.excerpt_of
                found = file.exists() and bare(block.text) in bare(file.read_text())
                faults.check(found, f"{block.place}: {block.excerpt_of} does not say so")


def page_of(pages, name):
    return next(page for page in pages if page.name == name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--root", type=pathlib.Path, default=blocks.ROOT)
    arguments = parser.parse_args()
    root, faults = arguments.root.resolve(), Faults()
    program = Program(arguments.binary)
    pages = [Page(root, name) for name in blocks.pages(root)]
    chart = json.loads((root / "charts/dra-driver-cpu/values.schema.json").read_text())
    check_metrics(faults, program, pages)
    check_flags(faults, program, pages)
    check_verbs(faults, program, pages)
    check_keys(faults, program, pages)
    check_values(faults, program, pages, chart)
    check_attributes(faults, pages)
    check_options(faults, program, pages)
    check_make(faults, pages, root)
    check_tests(faults, pages, root)
    check_alerts_and_events(faults, pages, root)
    check_doctor(faults, program, pages)
    check_links(faults, pages, root)
    check_excerpts(faults, pages, root)
    print(f"{faults.checked} names checked, {faults.failed} failed")
    return 1 if faults.failed else 0


if __name__ == "__main__":
    sys.exit(main())
