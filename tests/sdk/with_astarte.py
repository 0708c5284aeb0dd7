"""Astarte's device SDK for Python, unchanged, as a device's application uses it."""

import base64
import os
import queue
import threading
from datetime import datetime, timezone

import requests
from astarte.device import DeviceMqtt
from astarte.device.exceptions import AuthorizationError, DeviceAlreadyRegisteredError
from astarte.device.pairing_handler import (
    generate_random_device_id,
    obtain_device_transport_information,
    register_device_with_jwt_token,
)

from harness import PATIENCE, REALM, case, interfaces, same, until

MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=timezone.utc)

# By type: what the application sends or receives, and its JSON.
VALUES = {
    "double": [(21.5, 21.5), (-0.1, -0.1), (1e300, 1e300)],
    "integer": [(-4, -4), (2147483647, 2147483647), (-2147483648, -2147483648)],
    "longinteger": [(7, 7), (45543543534, 45543543534), (-(2**63) + 1, -(2**63) + 1)],
    "boolean": [(True, True), (False, False)],
    "string": [("ok", "ok"), ("größer ☃", "größer ☃")],
    "binaryblob": [(b"\x00\xde\xad", "AN6t"), (b"{}", base64.b64encode(b"{}").decode())],
    "datetime": [(MOMENT, "2023-11-14T22:13:20.123Z")],
}
for _name in list(VALUES):
    _lists = [[pair[side] for pair in VALUES[_name]] for side in (0, 1)]
    VALUES[f"{_name}array"] = [tuple(_lists), ([], [])]


def in_series(value_type, value):
    """Long integers are texts in a series: JSON's readers lose digits of large ones."""
    if value_type == "longinteger":
        return str(value)
    if value_type == "longintegerarray":
        return [str(one) for one in value]
    return value


class Application:
    """What runs on a device: an SDK device on a store of its own, and what it was told."""

    def __init__(self, tanit):
        self.tanit = tanit
        # the broker's private CA, for Pairing and for MQTT
        os.environ["REQUESTS_CA_BUNDLE"] = tanit.server_ca
        os.environ["SSL_CERT_FILE"] = tanit.server_ca
        self.pairing = f"{tanit.url}/pairing"
        self.token = tanit.cli("token", REALM, "--api", "pairing")["token"]
        self.id = generate_random_device_id()
        self.secret = self.register()
        self.start()

    def register(self):
        return register_device_with_jwt_token(self.id, REALM, self.token, self.pairing)

    def start(self, without=()):
        """Makes a device object on the store, as a program does that is started."""
        self.connected, self.disconnected = queue.Queue(), queue.Queue()
        self.received = queue.Queue()
        self.device = DeviceMqtt(
            self.id, REALM, self.secret, self.pairing, str(self.tanit.directory)
        )
        for document in interfaces():
            if document["interface_name"] not in without:
                self.device.add_interface_from_json(document)
        self.device.set_events_callbacks(
            on_connected=lambda _device: self.connected.put(True),
            on_disconnected=lambda _device, code: self.disconnected.put(code),
            on_data_received=lambda _device, *data: self.received.put(data),
        )

    def connect(self):
        self.device.connect()
        self.until_in()

    def until_in(self):
        """Waits until the SDK has sent its handshake, and the broker has taken it."""
        self.connected.get(timeout=PATIENCE)
        self.device.send("t.State", "/handshake/integer", 1)
        until(
            "the property that was sent after the handshake",
            lambda: self.property("/handshake/integer") == 1,
        )
        self.device.unset_property("t.State", "/handshake/integer")
        until("its end", lambda: self.property("/handshake/integer") == {})

    def leave(self):
        self.device.disconnect()
        same(self.disconnected.get(timeout=PATIENCE), 0)

    def send(self, interface, path, value, timestamp=None):
        self.device.send(interface, path, value, timestamp)

    def next(self):
        return self.received.get(timeout=PATIENCE)

    def property(self, path):
        return self.tanit.data(self.id, "t.State", path)

    def until_property(self, path, expected):
        until(f"{path} = {expected!r}", lambda: self.property(path) == expected)

    def values(self, path):
        return self.tanit.values(self.id, "t.Flows", path)

    def well(self):
        """Nothing that the SDK sent was refused."""
        same(self.tanit.errors(self.id), [])
        assert "clean_kick" not in self.tanit.reasons(self.id)

    def appengine(self, method, interface, path, value=None):
        """What an application on the other side does."""
        token = self.tanit.cli("token", REALM, "--api", "appengine")["token"]
        root = f"{self.tanit.url}/appengine/v1/{REALM}/devices/{self.id}/interfaces"
        answer = requests.request(
            method,
            f"{root}/{interface}{path}",
            json=None if value is None else {"data": value},
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE,
        )
        assert answer.ok, answer.text


@case
def astarte_pairs_and_connects(tanit):
    application = Application(tanit)
    with_another_secret = (application.id, REALM, "c2VjcmV0", application.pairing, False)
    try:
        obtain_device_transport_information(*with_another_secret)
        raise AssertionError("a wrong secret was accepted")
    except AuthorizationError:
        pass
    application.connect()
    shown = tanit.show(application.id)
    assert shown["connected"]
    same(
        {name: (entry["major"], entry["minor"]) for name, entry in shown["introspection"].items()},
        {one["interface_name"]: (1, 0) for one in interfaces()},
    )
    try:
        application.register()
        raise AssertionError("a device that has a certificate was registered again")
    except DeviceAlreadyRegisteredError:
        pass
    application.leave()
    until("the disconnection", lambda: not tanit.show(application.id)["connected"])
    application.well()


@case
def astarte_sends_datastream_values_of_all_types(tanit):
    application = Application(tanit)
    application.connect()
    for value_type, pairs in VALUES.items():
        for value, _ in pairs:
            application.send("t.Values", f"/{value_type}", value, MOMENT)
    for value_type, pairs in VALUES.items():
        expected = [in_series(value_type, json) for _, json in pairs]
        tanit.until_values(application.id, "t.Values", f"/{value_type}", expected)
    stamps = [row["timestamp"] for row in tanit.data(application.id, "t.Values", "/double")]
    same(stamps, ["2023-11-14T22:13:20.123Z"] * 3)
    for number in range(20):
        for path in ["/unreliable", "/guaranteed", "/unique"]:
            application.send("t.Flows", path, number)
    for path in ["/unreliable", "/guaranteed", "/unique"]:
        tanit.until_values(application.id, "t.Flows", path, list(range(20)))
    application.well()
    application.leave()


@case
def astarte_sets_and_unsets_properties_of_all_types(tanit):
    application = Application(tanit)
    application.connect()
    for value_type, pairs in VALUES.items():
        for value, json in pairs:
            application.send("t.State", f"/part/{value_type}", value)
            application.until_property(f"/part/{value_type}", json)
    application.device.unset_property("t.State", "/part/string")
    application.until_property("/part/string", {})
    same(application.property("/part/double"), 1e300)
    application.well()
    application.leave()


@case
def astarte_keeps_its_properties_over_its_own_restart(tanit):
    application = Application(tanit)
    application.connect()
    application.send("t.State", "/part/string", "kept")
    application.send("t.State", "/part/integer", 3)
    application.until_property("/part/integer", 3)
    application.leave()
    # another program on the same store: its handshake sends the properties and their list
    application.start()
    application.connect()
    same(application.property("/part/string"), "kept")
    same(application.property("/part/integer"), 3)
    application.well()
    application.leave()


@case
def astarte_receives_values_of_the_server(tanit):
    application = Application(tanit)
    application.connect()
    application.appengine("POST", "t.Commands", "/lamp/command", "blink")
    same(application.next(), ("t.Commands", "/lamp/command", "blink"))
    for value_type, pairs in VALUES.items():
        for value, json in pairs:
            application.appengine("PUT", "t.Settings", f"/{value_type}", json)
            interface, path, seen = application.next()
            same((interface, path), ("t.Settings", f"/{value_type}"))
            same(seen, value)
            same(type(seen), type(value))
    application.appengine("DELETE", "t.Settings", "/string")
    same(application.next(), ("t.Settings", "/string", None))
    application.well()
    application.leave()


@case
def astarte_adds_an_interface_while_it_is_connected(tanit):
    application = Application(tanit)
    application.start(without=["t.Flows", "t.Commands"])
    application.connect()
    for document in interfaces():
        if document["interface_name"] in ("t.Flows", "t.Commands"):
            application.device.add_interface_from_json(document)
    # right behind the introspection, on the same connection
    application.send("t.Flows", "/guaranteed", 1)
    tanit.until_values(application.id, "t.Flows", "/guaranteed", [1])
    application.appengine("POST", "t.Commands", "/lamp/command", "blink")
    same(application.next(), ("t.Commands", "/lamp/command", "blink"))
    application.device.remove_interface("t.Commands")
    until(
        "the introspection without it",
        lambda: "t.Commands" not in tanit.show(application.id)["introspection"],
    )
    application.well()
    application.leave()


@case
def astarte_returns_by_itself_when_it_is_disconnected(tanit):
    application = Application(tanit)
    application.connect()
    application.send("t.State", "/part/string", "kept")
    application.until_property("/part/string", "kept")
    tanit.cli("device", "disconnect", REALM, application.id)
    assert application.disconnected.get(timeout=PATIENCE) != 0
    application.until_in()
    application.send("t.Flows", "/unique", 1)
    tanit.until_values(application.id, "t.Flows", "/unique", [1])
    same(application.property("/part/string"), "kept")
    application.well()
    application.leave()


@case
def astarte_comes_back_after_kill_9_and_nothing_is_missing(tanit):
    application = Application(tanit)
    application.connect()
    application.send("t.State", "/part/string", "kept")
    for number in range(50):
        application.send("t.Flows", "/unique", number)
    tanit.until_values(application.id, "t.Flows", "/unique", list(range(50)))
    application.until_property("/part/string", "kept")
    application.send("t.State", "/part/integer", 4)
    quiet = threading.excepthook
    threading.excepthook = lambda _: None
    tanit.kill()
    application.disconnected.get(timeout=PATIENCE)
    # version 0.14.0 asks Pairing whether its certificate is still valid when it is disconnected, and
    # its network thread ends for good when nobody answers: the application starts anew
    until("the end of its network thread", lambda: not network_threads())
    threading.excepthook = quiet
    tanit.launch()
    same(application.values("/unique"), list(range(50)))
    same(application.property("/part/string"), "kept")

    certificate = (tanit.directory / application.id / "crypto" / "device.crt").read_text()
    application.start()
    application.connect()
    application.until_property("/part/integer", 4)
    same(application.property("/part/string"), "kept")
    application.send("t.Flows", "/unique", 50)
    tanit.until_values(application.id, "t.Flows", "/unique", list(range(51)))
    application.appengine("POST", "t.Commands", "/lamp/command", "blink")
    same(application.next(), ("t.Commands", "/lamp/command", "blink"))
    same(
        (tanit.directory / application.id / "crypto" / "device.crt").read_text(), certificate
    )
    application.well()
    application.leave()


def network_threads():
    return [one for one in threading.enumerate() if one.name.startswith("paho-mqtt-client")]
