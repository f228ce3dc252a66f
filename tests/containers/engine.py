"""Podman and buildah with a home of their own: storage, networks, settings in one directory.

The settings are for machines that are containers themselves: limits no higher than theirs, cgroups
without systemd, builds without namespaces.  Nothing fires healthchecks where there is no systemd,
so ``watching`` does it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .outcome import Skip
from .tools import APT, call, need, sources

__all__ = ["ROOT", "Engine", "until"]

ROOT = Path(__file__).resolve().parents[2]
_BASE = "docker.io/library/python:3.11-slim"
_RELEASE = "bookworm"  # whose python is 3.11
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_STORAGE = """[storage]
driver = "{driver}"
graphroot = "{home}/graph"
runroot = "{home}/run"
"""
_SETTINGS = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
tmp_dir = "{home}/tmp"
[network]
network_config_dir = "{home}/networks"
"""


class Engine:
    """Containers of one scratch directory."""

    def __init__(self, scratch: Path) -> None:
        if os.geteuid() != 0:
            raise Skip("containers are run as root here")
        remedy = f"apt-get install {' '.join(APT)}; or --install"
        for program in ("buildah", "podman", "mmdebstrap", "runc"):
            need(program, remedy)
        self.home = scratch / "engine"
        self.socket = self.home / "podman.sock"
        for folder in ("networks", "tmp"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        driver = "overlay" if "\toverlay\n" in Path("/proc/filesystems").read_text() else "vfs"
        storage, settings = self.home / "storage.conf", self.home / "containers.conf"
        storage.write_text(_STORAGE.format(driver=driver, home=self.home))
        settings.write_text(_SETTINGS.format(home=self.home))
        self.env = {"CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(settings)}
        self.remove_all()  # of a run in the same directory that was broken off

    # Images

    def base(self) -> str:
        """A look-alike of python:3.11-slim, from the packages of Debian."""
        if self._has(_BASE):
            return "was there"
        archive = self.home / "base.tar"
        packages = "--include=python3,python3-pip,python3-venv,ca-certificates"
        if not archive.exists():
            part = archive.with_suffix(".part.tar")
            address = sources(_RELEASE)
            call(
                "mmdebstrap", "--variant=minbase", packages, _RELEASE, part, address, timeout_s=500
            )
            part.rename(archive)
        box = self._buildah("from", "scratch").strip()
        self._buildah("add", "-q", box, str(archive), "/")
        alike = "rm -f /usr/lib/python3*/EXTERNALLY-MANAGED; ln -sf python3 /usr/bin/python"
        self._buildah("run", "--isolation", "chroot", box, "--", "sh", "-c", alike)
        self._buildah("commit", "-q", box, _BASE)
        self._buildah("rm", box)
        return f"of Debian's {_RELEASE}, {archive.stat().st_size / 1e6:.0f} MB"

    def build(self, dockerfile: str, tag: str, *arguments: str) -> str:
        """Build an image of the repository; its size."""
        inside = ["-v", f"{self._pip_settings()}:/etc/pip.conf:ro"]
        if _CERTIFICATES.exists():  # where the machine's own authority signs what pip reaches
            inside += ["-v", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
        options = ["--isolation", "chroot", "--pull-never", "--format", "docker", "--layers"]
        self._buildah("build", *options, "-t", tag, "-f", dockerfile, *inside, *arguments, ".")
        size = int(self.podman("image", "inspect", tag, "--format", "{{.Size}}"))
        return f"{tag}, {size / 1e6:.0f} MB"

    def _pip_settings(self) -> Path:
        path = self.home / "pip.conf"
        path.write_text(f"[global]\ncert = {_CERTIFICATES}\n" if _CERTIFICATES.exists() else "")
        return path

    def _has(self, image: str) -> bool:
        done = call("podman", "image", "exists", image, env=self.env, code=None)
        return done.returncode == 0

    def _buildah(self, *words: str) -> str:
        return call("buildah", *words, env=self.env, cwd=ROOT, timeout_s=900).stdout

    # Containers

    def podman(self, *words: str, timeout_s: float = 60) -> str:
        return call("podman", *words, env=self.env, cwd=ROOT, timeout_s=timeout_s).stdout.strip()

    def background(self, *words: str) -> subprocess.Popen[bytes]:
        """A command of podman that goes on beside."""
        environment = {**os.environ, **self.env}
        return subprocess.Popen(["podman", *words], env=environment, stdout=subprocess.DEVNULL)

    def state(self, name: str, what: str) -> str:
        """A field of a container, such as ``.State.ExitCode``."""
        return self.podman("inspect", name, "--format", "{{" + what + "}}")

    def pid(self, name: str) -> int:
        return int(self.state(name, ".State.Pid"))

    def healthy(self, name: str) -> bool:
        done = call("podman", "healthcheck", "run", name, env=self.env, code=None)
        return done.returncode == 0

    def remove_all(self) -> None:
        """Containers, volumes and networks; images stay."""
        for words in (
            ("rm", "--all", "--force", "--time", "1"),
            ("volume", "prune", "--force"),
            ("network", "prune", "--force"),
        ):
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                self.podman(*words)

    @contextlib.contextmanager
    def served(self) -> Iterator[dict[str, str]]:
        """Podman's socket, with the environment in which ``docker`` speaks to it."""
        address = f"unix://{self.socket}"
        self.socket.unlink(missing_ok=True)
        service = subprocess.Popen(
            ["podman", "system", "service", "--time=0", address],
            env={**os.environ, **self.env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(self.socket.exists, 20, "podman's socket")
            yield {"DOCKER_HOST": address}
        finally:
            service.terminate()
            service.wait(20)
            self.socket.unlink(missing_ok=True)

    @contextlib.contextmanager
    def watching(self, name: str) -> Iterator[None]:
        """Run the healthcheck of a container twice a second, as a daemon would."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.5):
                self.healthy(name)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def until(true: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until something holds; AssertionError when it does not in time."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {what}"
        time.sleep(0.1)
