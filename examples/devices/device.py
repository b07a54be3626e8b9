"""A device with MQTT 5. It needs paho-mqtt."""

import json
import time
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

BROKER, PORT, DEVICE = "127.0.0.1", 1883, "press-5"
COMMANDS, STATUS = f"devices/{DEVICE}/commands", f"devices/{DEVICE}/status"
LAST = Path("press-5.position")


def number(position):
    return [int(part) for part in position.split(".")[:5]]


def on_connect(client, userdata, flags, reason, properties):
    client.subscribe([(COMMANDS, 1), (f"pulsebridge/resumed/{DEVICE}", 1)])
    client.publish(STATUS, "online", qos=1, retain=True)
    if not flags.session_present and LAST.exists():  # the broker lost the session
        client.publish(f"pulsebridge/resume/{DEVICE}", LAST.read_text(), qos=1)


def on_message(client, userdata, message):
    user = dict(getattr(message.properties, "UserProperty", []))
    if message.topic != COMMANDS or "position" not in user:
        return
    last, position = LAST.read_text() if LAST.exists() else "", user["position"]
    repeated = user.get("repeat") == "1" and last and number(position) <= number(last)
    if position != last and not repeated:
        print("execute", message.payload.decode(), flush=True)  # act on the command here,
        new = LAST.with_suffix(".new")
        new.write_text(position)
        new.replace(LAST)  # then store its position
    if hasattr(message.properties, "ResponseTopic"):  # push.confirm: device
        answer = Properties(PacketTypes.PUBLISH)
        answer.CorrelationData = message.properties.CorrelationData
        client.publish(message.properties.ResponseTopic, "done", qos=1, properties=answer)


session = Properties(PacketTypes.CONNECT)
session.SessionExpiryInterval = 7 * 24 * 3600
device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=DEVICE, protocol=mqtt.MQTTv5)
device.will_set(STATUS, "offline", qos=1, retain=True)
device.on_connect, device.on_message = on_connect, on_message
device.connect(BROKER, PORT, clean_start=False, properties=session)
device.loop_start()
while True:
    reading = {"id": f"{DEVICE}-{time.time_ns()}", "temperature": 41.5}
    device.publish(f"plant/{DEVICE}/climate", json.dumps(reading), qos=1)
    time.sleep(60)
