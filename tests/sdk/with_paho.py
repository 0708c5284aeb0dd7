"""paho-mqtt with MQTT 3.1.1 and 5.0 over mutual TLS."""

import queue
import ssl
import threading

import bson
import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from harness import INTROSPECTION, PATIENCE, REALM, case, same, until

V311, V5 = mqtt.MQTTv311, mqtt.MQTTv5


class Device:
    """A device with the files that `tanit device credentials` wrote, and one paho client."""

    def __init__(self, tanit, version, newest_tls=ssl.TLSVersion.TLSv1_3):
        registered = tanit.cli("device", "register", REALM)
        self.id = registered["device_id"]
        self.base = f"{REALM}/{self.id}"
        self.tanit = tanit
        self.version = version
        files = tanit.directory / self.id
        secret = registered["credentials_secret"]
        verb = ("device", "credentials", REALM, self.id, "--secret", secret)
        tanit.cli(*verb, "--out", str(files))
        options = {"clean_session": False} if version == V311 else {}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=self.base, protocol=version, **options
        )
        context = ssl.create_default_context(cafile=str(files / "server-ca.crt"))
        context.maximum_version = newest_tls
        context.load_cert_chain(files / "device.crt", files / "device.key")
        self.client.tls_set_context(context)
        self.connacks = queue.Queue()
        self.subacks = queue.Queue()
        self.messages = queue.Queue()
        self.completed = {}
        self.after_completion = lambda: None
        self.client.on_connect = lambda _c, _u, *connack: self.connacks.put(connack)
        self.client.on_subscribe = lambda _c, _u, _mid, codes, _p: self.subacks.put(codes)
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_publish = self._on_publish

    def _on_publish(self, _client, _userdata, mid, code, _properties):
        self.completed[mid] = code
        self.after_completion()

    def connect(self):
        """Connects with the session that is there; returns session present and the properties."""
        options = {}
        if self.version == V5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3600
            options = {"clean_start": False, "properties": properties}
        self.client.connect("localhost", self.tanit.mqtt, **options)
        self.client.loop_start()
        return self.connected()

    def connected(self):
        flags, code, properties = self.connacks.get(timeout=PATIENCE)
        assert not code.is_failure, code
        return flags.session_present, properties

    def leave(self):
        self.client.disconnect()
        self.client.loop_stop()

    def subscribe(self, below):
        self.client.subscribe(f"{self.base}/{below}", qos=2)
        codes = self.subacks.get(timeout=PATIENCE)
        same([code.value for code in codes], [2])

    def declare(self):
        self.client.publish(self.base, INTROSPECTION, qos=2).wait_for_publish(PATIENCE)

    def send(self, below, value, qos):
        return self.client.publish(f"{self.base}/{below}", bson.dumps({"v": value}), qos=qos)

    def received(self):
        message = self.messages.get(timeout=PATIENCE)
        return message.topic, message.qos, message.retain, bson.loads(message.payload)["v"]


def values_at_each_qos(tanit, device):
    present, _ = device.connect()
    assert not present, "a new device has no session"
    device.declare()
    for number in range(10):
        for qos, path in enumerate(["unreliable", "guaranteed", "unique"]):
            device.send(f"t.Flows/{path}", number, qos).wait_for_publish(PATIENCE)
    for path in ["unreliable", "guaranteed", "unique"]:
        tanit.until_values(device.id, "t.Flows", f"/{path}", list(range(10)))
    same(tanit.errors(device.id), [])
    device.leave()
    until("the disconnection", lambda: tanit.reasons(device.id))
    same(tanit.reasons(device.id), ["client_disconnect"])


@case
def paho_311_sends_values_at_each_qos(tanit):
    values_at_each_qos(tanit, Device(tanit, V311))


@case
def paho_5_sends_values_at_each_qos(tanit):
    values_at_each_qos(tanit, Device(tanit, V5))


@case
def paho_sends_values_over_tls_1_2(tanit):
    device = Device(tanit, V311, newest_tls=ssl.TLSVersion.TLSv1_2)
    values_at_each_qos(tanit, device)


def server_values(tanit, device):
    present, _ = device.connect()
    assert not present, "a new device has no session"
    device.subscribe("t.Commands/#")
    device.subscribe("t.Settings/#")
    device.declare()
    topic = f"{device.base}/t.Commands/lamp/command"
    tanit.publish(device.id, "t.Commands", "/lamp/command", "online")
    same(device.received(), (topic, 1, False, "online"))
    tanit.publish(device.id, "t.Settings", "/integer", "5")
    same(device.received(), (f"{device.base}/t.Settings/integer", 2, False, 5))
    device.leave()
    for number in range(3):
        tanit.publish(device.id, "t.Commands", "/lamp/command", f"offline {number}")
    tanit.kill()
    tanit.launch()
    present, _ = device.connect()
    assert present, "the session outlives kill -9"
    for number in range(3):
        same(device.received(), (topic, 1, False, f"offline {number}"))
    device.leave()
    assert device.messages.empty(), "each came once"


@case
def paho_311_finds_its_session_and_its_messages_after_kill_9(tanit):
    server_values(tanit, Device(tanit, V311))


@case
def paho_5_finds_its_session_and_its_messages_after_kill_9(tanit):
    server_values(tanit, Device(tanit, V5))


def values_over_kill_9(tanit, device, count):
    device.connect()
    device.declare()
    killed = threading.Event()

    def kill():
        # in paho's own thread, so that it cannot see further acknowledgements before
        if len(device.completed) == 20 and not killed.is_set():
            tanit.kill()
            killed.set()

    device.after_completion = kill
    sent = []
    for number in range(count):
        for path, qos in [("guaranteed", 1), ("unique", 2)]:
            sent.append(device.send(f"t.Flows/{path}", number, qos).mid)
    assert killed.wait(PATIENCE), "20 acknowledgements were expected"
    assert any(mid not in device.completed for mid in sent), "killed with values under way"
    tanit.launch()
    present, _ = device.connected()
    assert present, "the session outlives kill -9"
    until("the other acknowledgements", lambda: all(mid in device.completed for mid in sent))
    same(tanit.values(device.id, "t.Flows", "/unique"), list(range(count)))
    at_least_once = tanit.values(device.id, "t.Flows", "/guaranteed")
    same(sorted(set(at_least_once)), list(range(count)))
    same(tanit.errors(device.id), [])
    device.leave()


@case
def paho_311_repeats_what_kill_9_cut_off_and_qos_2_is_stored_once(tanit):
    # back again, paho sends all that it holds at once: more than a 3.1.1 device may have open at QoS 2,
    # so that it is closed and comes back several times
    values_over_kill_9(tanit, Device(tanit, V311), 250)


@case
def paho_5_repeats_what_kill_9_cut_off_and_qos_2_is_stored_once(tanit):
    # paho sends all that it holds when it is back, whatever the Receive Maximum: no more than 100
    values_over_kill_9(tanit, Device(tanit, V5), 45)


@case
def paho_5_is_told_the_limits_and_why_a_value_is_refused(tanit):
    device = Device(tanit, V5)
    _, properties = device.connect()
    same(properties.ReceiveMaximum, 100)
    same(properties.MaximumPacketSize, 300 * 1024)
    device.declare()
    refused = device.send("t.Flows/guaranteed", "a text", 1)
    until("its PUBACK", lambda: refused.mid in device.completed)
    same(device.completed[refused.mid].value, 0x99)
    same(tanit.errors(device.id), ["unexpected_value_type"])
    same(tanit.values(device.id, "t.Flows", "/guaranteed"), [])


@case
def paho_is_answered_while_it_is_only_listening(tanit):
    """Keep-alive: with 1 second, paho pings; it stays connected over several of them."""
    device = Device(tanit, V311)
    pings = []
    device.client.on_log = lambda _c, _u, _level, text: (
        pings.append(text) if "PINGRESP" in text else None
    )
    device.client.connect("localhost", tanit.mqtt, keepalive=1)
    device.client.loop_start()
    device.connected()
    until("three PINGRESP", lambda: len(pings) >= 3)
    assert tanit.show(device.id)["connected"]
    device.leave()
    until("the disconnection", lambda: tanit.reasons(device.id))
    same(tanit.reasons(device.id), ["client_disconnect"])
