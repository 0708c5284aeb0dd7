//! Clients that nobody here wrote, unchanged, over real sockets: rumqttc and Mosquitto's tools, each
//! with MQTT 3.1.1 and with 5.0. `tests/sdk` does the same with clients in Python.

mod mosquitto;
mod rumqttc;
