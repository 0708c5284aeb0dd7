//! Which connection owns which session [MQTT-3.1.4-2].
