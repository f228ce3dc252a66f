"""Images, compose file, manifests and unit agree with this repository.

They are run by ``make container-test``, where there is what runs them.  Here they are only read:
the files and options that they name exist, versions are that of the package, nobody is root, and
no secret is written down.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import headrace
import headrace_server as hs
from headrace_proto import __version__
from headrace_server.pipeline.function_names import resolve
from headrace_server.process.config import RunConfig
from headrace_server.worker.owner import _bound
from tests.patience import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
KUBERNETES = ROOT / "packaging" / "kubernetes"
SHARES = ROOT / "packaging" / "kubernetes-shares"
SYSTEMD = ROOT / "packaging" / "systemd"
HEALTHY = ROOT / "docker" / "healthy.py"
USER = 10001
#: Files that are deployed; what is said of secrets holds for all of them.
DEPLOYED = [
    path
    for folder in ("docker", "packaging")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and "__pycache__" not in path.parts
] + [ROOT / "docker-compose.yml", ROOT / ".dockerignore"]


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile: name and arguments."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def last(path: Path, name: str) -> str:
    return [words for found, words in instructions(path) if found == name][-1]


@cache
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))


@cache
def manifests() -> dict[str, dict[str, Any]]:
    """The objects of the cluster by kind, as far as they are files."""
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    objects = [yaml.safe_load((KUBERNETES / name).read_text()) for name in names]
    return {found["kind"]: found for found in objects}


def pod() -> dict[str, Any]:
    return dict(manifests()["StatefulSet"]["spec"]["template"]["spec"])


@cache
def options_of_serve() -> frozenset[str]:
    command = [sys.executable, "-m", "headrace_server.cli", "serve", "--help"]
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout
    return frozenset(re.findall(r"--[a-z][a-z-]+", told))


def commands() -> dict[str, list[str]]:
    """Every command line by which these files start a server."""
    unit = re.search(r"^ExecStart=(.*)$", (SYSTEMD / "headrace.service").read_text(), re.MULTILINE)
    assert unit
    return {
        "image": json.loads(last(ROOT / "docker" / "server.Dockerfile", "CMD")),
        "compose": compose()["services"]["server"]["command"],
        "kubernetes": pod()["containers"][0]["args"],
        "systemd": shlex.split(unit[1])[1:],
    }


# What they start


@pytest.mark.parametrize("place", commands())
def test_a_server_is_started_with_options_that_it_has(place):
    words = commands()[place]
    assert words[0] == "serve"
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= options_of_serve()
    assert "--state-dir" in given


def test_the_environment_of_the_unit_holds_options_that_serve_has():
    lines = (SYSTEMD / "headrace.env").read_text().splitlines()
    names = {line.partition("=")[0] for line in lines if line and not line.startswith("#")}
    assert {"HEADRACE_PIPELINES", "HEADRACE_BIND"} <= names
    options = {"--" + name.removeprefix("HEADRACE_").lower().replace("_", "-") for name in names}
    assert options - {"--pipelines"} <= options_of_serve()


@pytest.mark.parametrize(
    ("grace", "place"),
    [
        (lambda: float(compose()["services"]["server"]["stop_grace_period"][:-1]), "compose"),
        (lambda: pod()["terminationGracePeriodSeconds"], "kubernetes"),
    ],
    ids=["compose", "kubernetes"],
)
def test_whoever_stops_a_server_waits_longer_than_it_drains(grace, place):
    [drain] = [w.partition("=")[2] for w in commands()[place] if w.startswith("--drain-timeout=")]
    assert grace() >= float(drain) + 5


def test_systemd_signals_the_parent_alone_and_waits_longer_than_it_drains():
    unit = (SYSTEMD / "headrace.service").read_text()
    environment = (SYSTEMD / "headrace.env").read_text()
    stop = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    drain = re.search(r"^HEADRACE_DRAIN_TIMEOUT=(\d+)$", environment, re.MULTILINE)
    assert stop and drain and int(stop[1]) >= int(drain[1]) + 5
    # Workers that got the signal too would die of it, and nothing could be drained.
    assert re.search(r"^KillMode=mixed$", unit, re.MULTILINE)
    assert unit.index("[Unit]") < unit.index("StartLimitIntervalSec=0\n") < unit.index("[Service]")


def test_the_pods_of_several_servers_are_those_of_one_but_for_their_share():
    config = yaml.safe_load((SHARES / "kustomization.yaml").read_text())
    assert (SHARES / config["resources"][0]).resolve() == KUBERNETES
    patch = yaml.safe_load((SHARES / "statefulset.yaml").read_text())["spec"]
    [server] = patch["template"]["spec"]["containers"]
    one = set(commands()["kubernetes"])
    assert {word for word in server["args"] if word not in one} == {"--partitions=64"}
    assert len(server["args"]) == len(one)
    environment = {entry["name"]: entry for entry in server["env"]}
    index = environment["POD_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.labels['apps.kubernetes.io/pod-index']"
    share = environment["HEADRACE_SHARE"]["value"]
    assert share == f"$(POD_INDEX)/{patch['replicas']}"
    assert "--share" in options_of_serve()
    address = re.search(
        r"tcp://headrace-\{0\.\.(\d+)\}\.headrace:5557", (ROOT / "docs/many-hosts.md").read_text()
    )
    assert address and int(address[1]) == patch["replicas"] - 1
    budget = yaml.safe_load((SHARES / "disruption.yaml").read_text())["spec"]
    assert budget["selector"] == manifests()["StatefulSet"]["spec"]["selector"]


def test_the_example_of_the_cluster_is_a_pipeline():
    config = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    [generated] = config["configMapGenerator"]
    assert generated["files"] == ["feeds.py"]
    pipeline = resolve(f"{KUBERNETES / 'feeds.py'}:feeds")()
    with hs.run(pipeline) as server, headrace.connect(server.address, timeout=PATIENCE_S) as feed:
        assert next(feed).sequences["steps"].shape == (16, 20, 8)


# Files and versions


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_made_of_files_that_are_there_and_not_ignored(path):
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignore
    let_in = [line[1:] for line in ignore if line.startswith("!")]
    for name, words in instructions(path):
        if name != "COPY" or words.startswith("--from="):
            continue
        for source in words.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(Path(source).match(pattern) for pattern in let_in), f"{source} is ignored"


def test_versions_are_that_of_the_package():
    for path in DOCKERFILES:
        assert f'org.opencontainers.image.version="{__version__}"' in path.read_text()
        assert set(re.findall(r"headrace-\w+:(\d[\w.]*)", path.read_text())) == {__version__}
    page = (ROOT / "docs" / "containers.md").read_text()
    assert set(re.findall(r"headrace-\w+:(\d[\w.]*)", page)) == {__version__}
    ours = {s["image"] for s in compose()["services"].values() if "build" in s}
    assert ours == {f"headrace-server:{__version__}", f"headrace-trainer:{__version__}"}
    [image] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["images"]
    assert image == {"name": pod()["containers"][0]["image"], "newTag": __version__}


def test_an_image_installs_what_the_package_asks_for():
    script, project = ROOT / "docker" / "requirements.py", ROOT / "pyproject.toml"
    command = [sys.executable, "-I", script, project, "server"]
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout
    assert [re.split("[>=<]", line)[0] for line in told.split()] == [
        *("pyzmq", "msgpack", "numpy", "google-crc32c", "pyarrow", "fsspec"),
        *("cloudpickle", "prometheus-client"),
    ]
    extras = re.search(
        r'^ARG EXTRAS="(.*)"$', (ROOT / "docker/server.Dockerfile").read_text(), re.M
    )
    assert extras
    subprocess.run(
        [*command[:4], *extras[1].split()], check=True, capture_output=True, timeout=PATIENCE_S
    )


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_can_be_built_on_a_base_of_a_known_digest(path):
    bases = {words.split()[0] for name, words in instructions(path) if name == "FROM"}
    assert bases == {"${BASE}"}
    assert "BASE=python:3.11-slim" in [w for name, w in instructions(path) if name == "ARG"]


# Users, rights and secrets


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_as_a_user_who_is_not_root(path):
    assert last(path, "USER") == f"{USER}:{USER}"


def test_compose_gives_the_server_descriptors_for_all_trainers_that_it_lets_in():
    limit = compose()["services"]["server"]["ulimits"]["nofile"]
    most = RunConfig((), "", ()).max_trainers
    assert _bound(most, limit["hard"])[0] == most
    unit = (SYSTEMD / "headrace.service").read_text()
    assert int(re.findall(r"LimitNOFILE=(\d+)", unit)[0]) >= limit["hard"]


@pytest.mark.parametrize("path", DEPLOYED, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_secret_is_written_down(path):
    """Nothing is given a password, a token or a key; what switches accounts off may name them."""
    text = path.read_text()
    secret = r"(password|passwd|token|secret|api_?key)\w*\s*[:=]\s*(?!\"?(true|false)\b)\S"
    assert not re.search(secret, text, re.IGNORECASE)
    assert "PRIVATE KEY" not in text and not re.search(r"https?://[^/\s]*:[^/\s]*@", text)


# The healthcheck


def healthy(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", HEALTHY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def environment_of_the_image() -> dict[str, str]:
    words = shlex.split(last(ROOT / "docker" / "server.Dockerfile", "ENV"))
    return dict(word.split("=", 1) for word in words)


def healthchecks() -> dict[str, list[str]]:
    """Return the command of each place that checks a server's health."""
    image = last(ROOT / "docker" / "server.Dockerfile", "HEALTHCHECK").partition("CMD ")[2]
    composed = compose()["services"]["server"]["healthcheck"]["test"]
    assert composed[0] == "CMD"
    [container] = pod()["containers"]
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    return {
        "image": json.loads(image),
        "compose": composed[1:],
        **{probe: container[probe]["exec"]["command"] for probe in probes},
    }


def test_every_healthcheck_asks_the_address_where_its_server_serves_http():
    """From within the container: 0.0.0.0 is the loopback too."""
    served = {"image": environment_of_the_image()["HEADRACE_HTTP"]}
    for place in ("compose", "kubernetes"):
        [served[place]] = [w[len("--http=") :] for w in commands()[place] if w[:7] == "--http="]
    for name, words in healthchecks().items():
        host, _, port = served.get(name, served["kubernetes"]).rpartition(":")
        assert host in ("127.0.0.1", "0.0.0.0")
        assert words[:-1] == ["python", "-I", "/opt/headrace/healthy.py"]
        assert words[-1].rpartition("/")[0] == f"http://127.0.0.1:{port}"
    # Opening sources may take long: what restarts a server must not count that as illness.
    pages = {name: words[-1].rpartition("/")[2] for name, words in healthchecks().items()}
    # Nor may it count a full disk: the next start would fail.
    asked = {"readyz": {"compose", "readinessProbe"}, "livez": {"startupProbe", "livenessProbe"}}
    assert pages == {n: next((p for p in asked if n in asked[p]), "healthz") for n in pages}


def test_who_fires_a_healthcheck_waits_longer_than_it_does():
    text = HEALTHY.read_text()
    patience = re.search(r"^_PATIENCE_S = ([\d.]+)$", text, re.MULTILINE)
    image = re.search(
        r"--timeout=(\d+)s", last(ROOT / "docker" / "server.Dockerfile", "HEALTHCHECK")
    )
    assert patience and image
    composed = compose()["services"]["server"]["healthcheck"]["timeout"]
    [container] = pod()["containers"]
    probes = [container[f"{name}Probe"]["timeoutSeconds"] for name in ("startup", "liveness")]
    probes.append(container["readinessProbe"]["timeoutSeconds"])
    for timeout in (float(image[1]), float(composed[:-1]), *probes):
        assert timeout > float(patience[1])


def test_a_server_in_an_image_is_bound_to_the_port_that_it_exposes():
    exposed, _, _ = last(ROOT / "docker" / "server.Dockerfile", "EXPOSE").partition("-")
    for place in ("image", "compose", "kubernetes"):
        assert f"tcp://0.0.0.0:{exposed}" in " ".join(commands()[place])


def test_a_server_is_healthy_although_nobody_trains_and_although_its_feed_waits():
    pipeline = hs.from_examples([{"x": i} for i in range(40)]).batch(4)
    with hs.run(pipeline, bind="tcp://127.0.0.1:*", http="127.0.0.1:0") as server:
        pages = [f"{server.http_address}/{page}" for page in ("healthz", "readyz")]
        asked = [server.address, *pages]
        assert [healthy(address).returncode for address in asked] == [0, 0, 0]
        with headrace.connect(server.address, timeout=PATIENCE_S, prefetch=0) as feed:
            next(feed)
            assert "greets with ZMTP 3" in healthy(server.address).stdout
            assert [healthy(page).stdout for page in pages] == [f"{page}: 200\n" for page in pages]
            assert sum(batch.rows for batch in feed) == 36  # it took no batch of the feed
    assert [healthy(address).returncode for address in asked] == [1, 1, 1]


def unhealthy(address: str) -> str:
    """Return the output of the check where it fails."""
    done = healthy(address)
    return done.stdout if done.returncode == 1 else ""


def test_a_server_whose_front_does_not_answer_is_not_healthy_and_says_so():
    pipeline = hs.from_examples([{"x": i} for i in range(40)]).batch(4)
    with hs.run(pipeline, bind="tcp://127.0.0.1:*", http="127.0.0.1:0") as server:
        locator, address = server.pids["locator"], f"{server.http_address}/healthz"
        os.kill(locator, signal.SIGSTOP)
        try:  # a status of the moment before may be answered for half a second more
            eventually(lambda: "503" in (text := unhealthy(address)) and "locator" in text)
        finally:
            os.kill(locator, signal.SIGCONT)


def test_an_open_port_that_says_nothing_is_not_healthy():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = healthy(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
    assert done.returncode == 1 and "timed out" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["tcp://127.0.0.1"], ["tcp://a", "b"]])
def test_a_healthcheck_of_no_address_fails_without_a_traceback(arguments):
    done = healthy(*arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr
