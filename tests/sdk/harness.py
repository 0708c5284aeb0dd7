"""The `tanit` binary on free ports in a temporary directory, and what the cases stand on."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "tanit"
REALM = "acme"
# Longest time that anything may take before it counts as never, in seconds.
PATIENCE = 30

SCALARS = ["double", "integer", "longinteger", "boolean", "string", "binaryblob", "datetime"]


class Tanit:
    """A `tanit serve` of its own. Ports stay the same when it is launched again."""

    def __init__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="tanit-sdk-")
        self.directory = Path(self._directory.name)
        self.data_dir = self.directory / "data"
        self.mqtt, self.http = free_ports(2)
        config = (
            f'[mqtt]\nlisten = "127.0.0.1:{self.mqtt}"\n'
            f'[http]\nlisten = "127.0.0.1:{self.http}"\ntls = true\n'
            f'[pairing]\nbroker_url = "mqtts://localhost:{self.mqtt}/"\n'
        )
        (self.directory / "tanit.toml").write_text(config)
        self.log = self.directory / "tanit.log"
        self.launch()
        self.cli("realm", "create", REALM)
        for document in interfaces():
            self.install(document)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._child.kill()
        self._child.wait()
        self._directory.cleanup()

    @property
    def server_ca(self):
        return str(self.data_dir / "server-ca.crt")

    @property
    def url(self):
        return f"https://localhost:{self.http}"

    def launch(self):
        with self.log.open("a") as log:
            self._child = subprocess.Popen(
                [BINARY, "serve", "--config", self.directory / "tanit.toml"]
                + ["--data-dir", self.data_dir],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.cli("status")

    def kill(self):
        """SIGKILL."""
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(PATIENCE)

    def run(self, *arguments):
        return subprocess.run(
            [BINARY, "--json", "--data-dir", self.data_dir, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )

    def cli(self, *arguments):
        """Runs a verb, which has to succeed, and returns what it printed."""
        ended = self.run(*arguments)
        if ended.returncode != 0:
            raise AssertionError(f"tanit {' '.join(arguments)} failed: {ended.stderr}")
        return json.loads(ended.stdout) if ended.stdout else None

    def install(self, document):
        file = self.directory / f"{document['interface_name']}.json"
        file.write_text(json.dumps(document))
        self.cli("interface", "install", REALM, str(file))

    def publish(self, device, interface, path, value):
        """A value from the server."""
        self.cli("publish", REALM, device, interface, path, value)

    def data(self, device, interface, path):
        """What AppEngine answers for a path; an empty list where there is nothing."""
        ended = self.run("data", REALM, device, interface, path)
        if ended.returncode != 0:
            assert "not found" in ended.stderr, ended.stderr
            return []
        return json.loads(ended.stdout)

    def values(self, device, interface, path):
        return [row["value"] for row in self.data(device, interface, path)]

    def until_values(self, device, interface, path, expected):
        """Waits for as many values as are expected; they have to be these."""
        until(
            f"{len(expected)} values of {interface}{path}",
            lambda: len(self.values(device, interface, path)) >= len(expected),
        )
        same(self.values(device, interface, path), expected)

    def show(self, device):
        return self.cli("device", "show", REALM, device)

    def errors(self, device):
        return [row["error_name"] for row in self.cli("device", "errors", REALM, device)]

    def reasons(self, device):
        """Why the device was disconnected, oldest first."""
        rows = self.cli("device", "history", REALM, device)
        rows = sorted(rows, key=lambda row: row["sequence"])
        return [row["reason"] for row in rows if row["event"] == "disconnected"]


def interfaces():
    """Interfaces with all types, both ways."""
    types = [name + array for name in SCALARS for array in ("", "array")]

    def document(name, kind, ownership, mappings):
        return {
            "interface_name": name,
            "version_major": 1,
            "version_minor": 0,
            "type": kind,
            "ownership": ownership,
            "mappings": mappings,
        }

    def stream(path, value_type, reliability):
        return {"endpoint": path, "type": value_type, "reliability": reliability}

    return [
        document(
            "t.Values",
            "datastream",
            "device",
            [{**stream(f"/{name}", name, "unique"), "explicit_timestamp": True} for name in types],
        ),
        document(
            "t.Flows",
            "datastream",
            "device",
            [
                stream("/unreliable", "integer", "unreliable"),
                stream("/guaranteed", "integer", "guaranteed"),
                stream("/unique", "integer", "unique"),
            ],
        ),
        document(
            "t.State",
            "properties",
            "device",
            [{"endpoint": f"/%{{part}}/{name}", "type": name, "allow_unset": True} for name in types],
        ),
        document(
            "t.Settings",
            "properties",
            "server",
            [{"endpoint": f"/{name}", "type": name, "allow_unset": True} for name in types],
        ),
        document(
            "t.Commands",
            "datastream",
            "server",
            [stream("/%{unit}/command", "string", "guaranteed")],
        ),
    ]


INTROSPECTION = ";".join(f"{one['interface_name']}:1:0" for one in interfaces())


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def until(what, condition):
    """Waits until the condition holds, and returns what it gave."""
    end = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"it never came: {what}")
        time.sleep(0.02)


def same(seen, expected):
    assert seen == expected, f"expected {expected!r}, seen {seen!r}"


_cases = []


def case(function):
    """Makes a function that takes a `Tanit` one of the cases."""
    _cases.append(function)
    return function


def run_all(only=""):
    """Runs each case on a broker of its own; returns how many failed."""
    failed = 0
    chosen = [one for one in _cases if only in one.__name__]
    for one in chosen:
        started = time.monotonic()
        with Tanit() as tanit:
            try:
                one(tanit)
                outcome = "ok"
            except Exception:  # whatever it is, the others are to run
                failed += 1
                outcome = "FAILED"
                traceback.print_exc()
                print("the log ends:", *tanit.log.read_text().splitlines()[-15:], sep="\n")
        print(f"{one.__name__} ... {outcome} ({time.monotonic() - started:.1f} s)", flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return failed
