#!/usr/bin/env python3
"""The Helm chart, through the real helm: what it renders, what it refuses, what the driver says to its configuration.

    test_chart.py [-v] [TestCase.test...]

golden/default.yaml is what the chart renders without values; golden/<case>.diff is what values/<case>.yaml changes
in it. UPDATE_EXPECT=1 writes them anew: read the difference. DRACPU_BIN names the driver's binary; without it the
tests that ask the driver are skipped.
"""
import difflib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CHART = ROOT / "charts" / "dra-driver-cpu"
GOLDEN = HERE / "golden"
CASES = {path.stem: path for path in sorted((HERE / "values").glob("*.yaml"))}

sys.path.insert(0, str(ROOT / "tests" / "tools"))
sys.path.insert(0, str(ROOT / "tests" / "tools" / "docs"))
import blocks  # noqa: E402
import get_helm  # noqa: E402
import get_promtool  # noqa: E402

HELM = get_helm.directory() / "helm"
DRACPU = os.environ.get("DRACPU_BIN")
PROMTOOL, no_promtool = get_promtool.find()
needs_driver = unittest.skipUnless(DRACPU, "DRACPU_BIN is not set: nobody to ask what the configuration means")


def run(*command, stdin=None):
    return subprocess.run([str(word) for word in command], input=stdin, capture_output=True, text=True)


def helm(verb, *words, values="", stdin=None):
    """The answer of helm for a release named r; `values` is a file, or text of one."""
    if isinstance(values, pathlib.Path):
        words, stdin = (*words, "--values", values), None
    elif values:
        words, stdin = (*words, "--values", "-"), values
    return run(HELM, verb, *words, stdin=stdin)


def render(values="", *words):
    answer = helm("template", "r", CHART, "--namespace", "kube-system", "--kube-version", "1.37.0", *words, values=values)
    if answer.returncode != 0:
        raise AssertionError(f"helm template failed: {answer.stderr}")
    return answer.stdout


def documents(text):
    """The rendered objects as text, by kind."""
    parts = [part for part in re.split(r"(?m)^---$", text) if part.strip()]
    return {re.search(r"(?m)^kind: (\w+)$", part).group(1): part for part in parts}


def driver_config(text):
    """The file that the driver gets."""
    lines = text.split("  config.yaml: |\n", 1)[1].split("\n---\n", 1)[0].splitlines()
    return "".join(f"{line[4:]}\n" for line in lines)


def driver_args(text):
    """The arguments of the driver's container, after the program."""
    words = re.search(r"(?m)^ +args:\n((?: +- .*\n)+)", documents(text)["DaemonSet"]).group(1)
    program, *flags = [line.strip().removeprefix("- ").strip('"') for line in words.splitlines()]
    assert program == "/dracpu", program
    return flags


def differences(before, after):
    """What changed, without line numbers, so that a change elsewhere leaves it as it is."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=2, lineterm="")
    return "".join(f"{'@@' if line.startswith('@@') else line}\n" for line in list(lines)[2:])


class Golden(unittest.TestCase):
    maxDiff = None

    def compare(self, name, text):
        path = GOLDEN / name
        if os.environ.get("UPDATE_EXPECT"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        self.assertEqual(path.read_text() if path.exists() else "", text, f"{name} differs; UPDATE_EXPECT=1 writes it anew")

    def test_without_values(self):
        self.compare("default.yaml", render())

    def test_each_case_changes_what_its_golden_file_says(self):
        default = render()
        for case, path in CASES.items():
            with self.subTest(case):
                self.compare(f"{case}.diff", differences(default, render(path)))

    def test_every_golden_file_has_its_case(self):
        known = {"default.yaml", *(f"{case}.diff" for case in CASES), *(f"notes-{case}.txt" for case in NOTES)}
        self.assertEqual({path.name for path in GOLDEN.iterdir()}, known)

    def test_notes(self):
        for case, values in NOTES.items():
            with self.subTest(case):
                answer = helm("install", "r", CHART, "--namespace", "kube-system", "--dry-run=client", values=values)
                self.assertEqual(answer.returncode, 0, answer.stderr)
                self.compare(f"notes-{case}.txt", answer.stdout.split("\nNOTES:\n", 1)[1])


NOTES = {"default": "", "individual": CASES["individual"], "external": CASES["external"]}


class Rendered(unittest.TestCase):
    def test_lint_is_silent_for_every_case(self):
        for case, values in {"default": "", **CASES}.items():
            with self.subTest(case):
                answer = helm("lint", "--strict", CHART, values=values)
                self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
                self.assertNotRegex(answer.stdout, r"WARN|ERROR")

    def test_another_strategy_is_a_change_of_configuration_only(self):
        packed, llc_first = documents(render()), documents(render("driverConfig: {allocator: llc-first}"))
        changed = {kind for kind in packed if packed[kind] != llc_first[kind]}
        self.assertEqual(changed, {"ConfigMap", "DaemonSet"})
        lines = difflib.ndiff(packed["DaemonSet"].splitlines(), llc_first["DaemonSet"].splitlines())
        changes = [line for line in lines if line[0] in "+-"]
        self.assertEqual(len(changes), 2)
        for line in changes:
            self.assertIn("checksum/config: ", line)

    def test_names_of_a_release_are_for_good(self):
        """The DaemonSet's selector cannot be changed, so an upgrade works under these names only."""
        objects = documents(render(CASES["older-release"]))
        self.assertIn("\n  name: dracpu\n", objects["DaemonSet"])
        self.assertIn("\n  name: dracpu-config\n", objects["ConfigMap"])
        self.assertIn("\n  name: dracpu\n", objects["ServiceAccount"])
        selector = """    matchLabels:\n      app.kubernetes.io/name: "dra-driver-cpu"\n      app.kubernetes.io/instance: "r"\n  """
        self.assertIn(selector, objects["DaemonSet"])
        names = {"r": "r-dra-driver-cpu", "dra-driver-cpu": "dra-driver-cpu", "my-dra-driver-cpu-2": "my-dra-driver-cpu-2"}
        for release, name in names.items():
            text = run(HELM, "template", release, CHART).stdout
            self.assertIn(f"\n  name: {name}\n", documents(text)["DaemonSet"])

    def test_null_is_the_default(self):
        nothing = "kubeletRootDir: null\ndriverConfig: null\nstrategies: null\npodLabels: null\ntolerations: null\n"
        self.assertEqual(render(nothing), render())

    def test_version_is_the_workspace_s(self):
        version = re.search(r'(?m)^version = "(.*)"$', (ROOT / "Cargo.toml").read_text()).group(1)
        chart = (CHART / "Chart.yaml").read_text()
        self.assertIn(f"\nversion: {version}\n", chart)
        self.assertIn(f"\nappVersion: {version}\n", chart)

    def test_every_value_has_a_schema_and_is_documented(self):
        values = re.findall(r"(?m)^(?:# )?([a-zA-Z]+):", (CHART / "values.yaml").read_text())
        schema = json.loads((CHART / "values.schema.json").read_text())
        self.assertEqual(sorted(values), sorted(set(schema["properties"]) - {"global"}))
        page = (ROOT / "docs" / "installation.md").read_text()
        self.assertEqual([value for value in values if not re.search(rf"`{value}\b", page)], [])


STRATEGY = "strategies: [{name: mine, hostPath: {path: /opt/mine.wasm}}]\n"
# What is refused, and words of the message.
REFUSED = {
    "unknown value": ("healtzPort: 1", "additional properties 'healtzPort' not allowed"),
    "unknown key of image": ("image: {name: x}", "'/image': additional properties 'name' not allowed"),
    "unknown key of rbac": ("rbac: {enabled: true}", "'/rbac': additional properties 'enabled' not allowed"),
    "unknown key of args": ("args: {v: 4}", "'/args': additional properties 'v' not allowed"),
    "unknown key of resources": ("resources: {request: {}}", "'/resources': additional properties 'request' not allowed"),
    "tag that is a number": ("image: {tag: 1.2}", "'/image/tag': got number, want null or string"),
    "port 0": ("healthzPort: 0", "'/healthzPort': minimum: got 0, want 1"),
    "port too high": ("healthzPort: 65536", "'/healthzPort': maximum: got 65,536, want 65,535"),
    "group by": ("args: {groupBy: core}", "'/args/groupBy': value must be one of '', 'numanode', 'socket', 'llc', 'machine'"),
    "no node may be away": ("rollingUpdate: {maxUnavailable: 0}", "'/rollingUpdate/maxUnavailable'"),
    "kubeletRootDir empty": ("kubeletRootDir: ''", 'kubeletRootDir: "" is not an absolute path; leave the value out'),
    "kubeletRootDir relative": ("kubeletRootDir: var/lib", 'kubeletRootDir: "var/lib" is not an absolute path'),
    "kubeletRootDir the root": ("kubeletRootDir: /", "is not the kubelet's directory"),
    "kubeletRootDir too long": (f"kubeletRootDir: /{'a' * 73}", "kubeletRootDir: 74 characters are 1 too many"),
    "values of an older chart": ("hostPaths: null", "upgrade with --reset-then-reuse-values"),
    "key of another case": ("driverConfig: {groupby: socket}", "driverConfig.groupby: not a key .* did you mean groupBy\\?"),
    "unknown key": ("driverConfig: {turbo: 1}", "driverConfig.turbo: not a key .* known are apiVersion, .* claimStatus"),
    "a flag in the file": ("driverConfig: {kubeletRootDir: /x}", "set the chart's value kubeletRootDir"),
    "unknown allowed strategy": (
        "driverConfig: {allowedStrategies: [packed, mine]}",
        'allowedStrategies: "mine" is neither built in .* nor the name',
    ),
    "unknown strategy": ("driverConfig: {allocator: mine}", 'allocator: "mine" is neither built in .* nor the name'),
    "cpumanager for a machine": (
        "{driverConfig: {allocator: cpumanager}, args: {groupBy: machine}}",
        "cpumanager does not serve groupBy machine; name another strategy",
    ),
    "no source": ("strategies: [{name: mine}]", r"strategies\[0\] \(mine\): has no source; set one of image, configMap and hostPath"),
    "two sources": (
        "strategies: [{name: mine, hostPath: {path: /x}, configMap: {name: a, key: b}}]",
        r"strategies\[0\] \(mine\): has 2 sources \(configMap, hostPath\); keep one",
    ),
    "unknown source": ("strategies: [{name: mine, url: x}]", "'/strategies/0': additional properties 'url' not allowed"),
    "half a source": ("strategies: [{name: mine, image: {reference: x}}]", "'/strategies/0/image': missing property 'path'"),
    "no name": ("strategies: [{hostPath: {path: /x}}]", "'/strategies/0': missing property 'name'"),
    "a name that is none": ("strategies: [{name: My_Own, hostPath: {path: /x}}]", "'/strategies/0/name': 'My_Own' does not match"),
    "the name of the built-in": (STRATEGY.replace("mine,", "cpumanager,"), "cpumanager always stands for the built-in strategy packed"),
    "a name twice": (
        "strategies: [{name: a, hostPath: {path: /x}}, {name: a, hostPath: {path: /y}}]",
        r"strategies\[1\] \(a\): the name is there twice",
    ),
    "digest of another kind": (STRATEGY.replace("}]", ", digest: 'md5:12'}]", 1), 'digest: "md5:12" is not sha256: with 64'),
    "digest in capitals": (STRATEGY.replace("}]", f", digest: 'sha256:{'A' * 64}'}}]", 1), "is not sha256: with 64 lower-case"),
    "path out of the image": (
        "strategies: [{name: a, image: {reference: x, path: ../etc/passwd}}]",
        'image.path: "../etc/passwd" is not the path of a file within the image',
    ),
    "directory of the host": ("strategies: [{name: a, hostPath: {path: /opt/}}]", 'hostPath.path: "/opt/" is not the absolute path'),
    "file in the host's root": ("strategies: [{name: a, hostPath: {path: /a.wasm}}]", 'hostPath.path: "/a.wasm" lies in the host.s root directory'),
    "unknown limit": (STRATEGY.replace("}]", ", limits: {memory: 1}}]", 1), "'/strategies/0/limits': additional properties 'memory'"),
    "strategies in both places": (
        f"{STRATEGY}driverConfig: {{strategies: [{{name: other, path: /x}}]}}",
        "strategies and driverConfig.strategies are both set; move all entries to one",
    ),
    "strategies that nobody asks": (
        f"{STRATEGY}args: {{cpuDeviceMode: individual}}",
        "args.cpuDeviceMode: individual .* no strategy is ever asked; remove strategies",
    ),
    "options that nobody reads": (
        "driverConfig: {cpuDeviceMode: individual, strategyOptions: {a: 1}}",
        "driverConfig.cpuDeviceMode: individual .* remove driverConfig.strategyOptions",
    ),
    "a label of the selector": ("podLabels: {app.kubernetes.io/name: x}", "podLabels: app.kubernetes.io/name is what the DaemonSet"),
    "the chart's annotation": ("podAnnotations: {checksum/config: x}", "podAnnotations: checksum/config is the chart's own"),
    "both monitors": ("{podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}", "scraped twice; keep one"),
}


class Refused(unittest.TestCase):
    def test_wrong_values_are_refused_with_words_that_help(self):
        for case, (values, words) in REFUSED.items():
            with self.subTest(case):
                answer = helm("template", "r", CHART, values=values)
                self.assertNotEqual(answer.returncode, 0, "was accepted")
                self.assertRegex(answer.stderr, words)

    def test_all_mistakes_come_in_one_message(self):
        answer = helm("template", "r", CHART, values="{kubeletRootDir: '', driverConfig: {allocator: mine, turbo: 1}}")
        self.assertEqual(len(re.findall(r"(?m)^  - ", answer.stderr)), 3, answer.stderr)

    def test_older_clusters_are_refused(self):
        answer = helm("template", "r", CHART, "--kube-version", "1.33.9")
        self.assertNotEqual(answer.returncode, 0)
        self.assertIn("incompatible with Kubernetes", answer.stderr)


RULES = CHART / "files" / "rules.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"


def metrics_in(text):
    """The names of the driver's metrics in a text."""
    return set(re.findall(r"\bdra_cpu_\w+", text))


class Monitoring(unittest.TestCase):
    def test_the_rules_are_the_file_as_it_is(self):
        rule = documents(render(CASES["rules"]))["PrometheusRule"]
        _, groups = RULES.read_text().split("\ngroups:\n")
        spec = rule.split("\nspec:\n", 1)[1].replace("\n  ", "\n").removeprefix("  ")
        self.assertEqual(spec.strip(), f"groups:\n{groups}".strip())

    def test_the_dashboard_is_the_file_as_it_is(self):
        values = "monitoring: {dashboard: {enabled: true, labels: {folder: nodes}, annotations: {a: b}}}"
        text = render(values)
        parts = re.split(r"(?m)^---$", text)
        (config_map,) = [part for part in parts if "name: r-dra-driver-cpu-dashboard\n" in part]
        self.assertIn('    folder: nodes\n    grafana_dashboard: "1"\n', config_map)
        self.assertIn("  annotations:\n    a: b\n", config_map)
        lines = config_map.split("  dra-driver-cpu.json: |\n", 1)[1].splitlines()
        self.assertEqual(json.loads("\n".join(lines)), json.loads(DASHBOARD.read_text()))

    def test_panels_say_what_they_show_and_do_not_overlap(self):
        panels = json.loads(DASHBOARD.read_text())["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        taken = set()
        for panel in panels:
            with self.subTest(panel["title"]):
                self.assertTrue(panel["description"] and panel["targets"])
                at = panel["gridPos"]
                self.assertLessEqual(at["x"] + at["w"], 24)
                fields = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
                self.assertFalse(fields & taken)
                taken |= fields

    @needs_driver
    def test_every_metric_that_is_named_is_one_of_the_driver_s(self):
        table = json.loads(run(DRACPU, "introspect", "metrics").stdout)["metrics"]
        known = {metric["name"] for metric in table if metric["type"] != "histogram"}
        for metric in table:
            if metric["type"] == "histogram":
                known |= {f"{metric['name']}_{suffix}" for suffix in ("bucket", "sum", "count")}
        labels = {metric["name"]: set(metric["labels"]) for metric in table}
        for path in (RULES, DASHBOARD):
            with self.subTest(path.name):
                self.assertEqual(metrics_in(path.read_text()) - known, set())
                for name, selector in re.findall(r"\b(dra_cpu_\w+)\{([^}]*)\}", path.read_text().replace('\\"', '"')):
                    base = re.sub("_(bucket|sum|count)$", "", name)
                    used = set(re.findall(r"(\w+)\s*[=!]", selector)) - {"instance"}
                    self.assertLessEqual(used, labels.get(name, labels.get(base)), name)
        # What no alert and no panel shows, nobody sees.
        shown = metrics_in(DASHBOARD.read_text())
        hidden = {name for name in labels if not any(metric.startswith(name) for metric in shown)}
        self.assertEqual(hidden, set())

    @unittest.skipUnless(PROMTOOL, no_promtool)
    def test_the_rules_are_sound_and_raise_what_they_should(self):
        for words in (("check", "rules", RULES), ("test", "rules", HERE / "rules_test.yaml")):
            answer = run(PROMTOOL, *words)
            self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)

    @unittest.skipUnless(PROMTOOL, no_promtool)
    def test_every_query_of_the_dashboard_is_sound(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("groups:\n  - name: dashboard\n    rules:\n")
            for panel in json.loads(DASHBOARD.read_text())["panels"]:
                for number, target in enumerate(panel["targets"]):
                    query = re.sub(r"\$__(rate_interval|range)", "5m", target["expr"])
                    record = f"panel:{panel['id']}:{number}"
                    file.write(f"      - {{record: {json.dumps(record)}, expr: {json.dumps(query)}}}\n")
            file.flush()
            answer = run(PROMTOOL, "check", "rules", file.name)
            self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)

    def test_every_alert_has_a_test_that_raises_it_and_one_that_does_not(self):
        alerts = re.findall(r"(?m)- alert: (\w+)$", RULES.read_text())
        tests = (HERE / "rules_test.yaml").read_text()
        for alert in alerts:
            with self.subTest(alert):
                self.assertRegex(tests, rf"alertname: {alert}\n +exp_alerts:\n +- exp_labels")
                self.assertRegex(tests, rf"alertname: {alert}(, exp_alerts: \[\])?}}")


def ask_driver(text):
    """`dracpu slices` with the flags and the file of a release."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(driver_config(text))
        file.flush()
        flags = [f"--config={file.name}" if flag.startswith("--config=") else flag for flag in driver_args(text)]
        return run(DRACPU, "slices", "--machine", "two-socket", *flags)


def documented_values():
    """Values that stand in pages and examples, by place."""
    found = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "examples" / "values").glob("*.yaml"))}
    for block in (block for page in blocks.pages() for block in blocks.read(page)):
        if block.language == "yaml" and not block.excerpt_of and re.search(r"(?m)^(driverConfig|args|image|podMonitor):", block.text):
            # A digest as it would be.
            found[block.place] = block.text.replace("sha256:…", f"sha256:{'0' * 64}")
    return found


class Documented(unittest.TestCase):
    def test_values_of_pages_and_examples_are_taken(self):
        values = documented_values()
        self.assertGreater(len(values), 8)
        for place, text in values.items():
            with self.subTest(place):
                rendered = render(text)
                answer = ask_driver(rendered) if DRACPU else None
                if answer and "strategies:" in text:
                    self.assertRegex(answer.stderr, r"cannot read .*/strategies/\S+: .*(?i:no such file)")
                elif answer:
                    self.assertEqual(answer.returncode, 0, answer.stderr)


@needs_driver
class Driver(unittest.TestCase):
    """What the chart writes, given to the driver."""

    def test_the_driver_accepts_flags_and_configuration(self):
        asked = set()
        for case, values in {"default": "", **CASES}.items():
            text = render(values)
            question = (driver_config(text), *driver_args(text))
            if question in asked:
                continue
            asked.add(question)
            with self.subTest(case):
                answer = ask_driver(text)
                self.assertNotRegex(answer.stderr, "deprecated")
                missing = re.search(r"cannot read .*(/strategies/|/etc/overlay/)\S+: .*no such file", answer.stderr, re.IGNORECASE)
                if case.startswith("strategy-") or case == "paths":
                    # The file is in the pod only: that it is asked for says that all else was accepted.
                    self.assertTrue(missing, answer.stderr)
                else:
                    self.assertEqual(answer.returncode, 0, answer.stderr)
                    self.assertIn("kind: ResourceSlice", answer.stdout)

    def test_values_arrive(self):
        answer = ask_driver(render(CASES["args-win"]))
        self.assertIn("cpudevsocket000", answer.stdout)
        self.assertIn("node-9", answer.stdout)

    def test_the_chart_knows_the_keys_of_the_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("turbo: 1\n")
            file.flush()
            driver = run(DRACPU, "slices", "--machine", "two-socket", "--config", file.name).stderr
        chart = helm("template", "r", CHART, values="driverConfig: {turbo: 1}").stderr
        known = r"known are (.*)"
        self.assertEqual(re.search(known, chart).group(1), re.search(known, driver).group(1))

    def test_the_chart_knows_the_built_in_strategies(self):
        listed = run(DRACPU, "strategy", "list").stdout.splitlines()[1:]
        names = {line.removeprefix("*").split()[0] for line in listed}
        message = helm("template", "r", CHART, values="driverConfig: {allocator: mine}").stderr
        known = re.search(r"neither built in \((.*?)\)", message).group(1).split(", ")
        self.assertEqual(set(known), names | {"cpumanager"})


if __name__ == "__main__":
    unittest.main()
