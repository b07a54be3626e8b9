"""A device with MicroPython and umqtt.simple: MQTT 3.1.1, and push.position_in: topic."""

import os
import time

from umqtt.simple import MQTTClient

BROKER, PORT, DEVICE = "127.0.0.1", 1883, b"press-6"
COMMANDS, STATUS = b"devices/press-6/commands", b"devices/press-6/status"
LAST = "press-6.position"
received = []


def last():
    try:
        with open(LAST) as file:
            return file.read()
    except OSError:
        return ""


def number(position):
    return [int(part) for part in position.split("/")[:5]]


def on_message(topic, payload):
    received.append((topic, payload))  # a callback must not publish


def connect():
    client = MQTTClient(DEVICE, BROKER, PORT, keepalive=60)
    client.set_last_will(STATUS, b"offline", retain=True, qos=1)
    client.set_callback(on_message)
    known = client.connect(clean_session=False)
    client.subscribe(COMMANDS + b"/#", qos=1)
    client.publish(STATUS, b"online", retain=True, qos=1)
    if not known and last():  # the broker lost the session
        client.publish(b"pulsebridge/resume/" + DEVICE, last().encode(), qos=1)
    return client


def execute(client, topic, payload):
    position = topic[len(COMMANDS) + 1 :].decode()
    repeated = position.endswith("/repeat")
    if repeated:
        position = position[: -len("/repeat")]
    repeated = repeated and last() and number(position) <= number(last())
    if position != last() and not repeated:
        print("execute", payload.decode())  # act on the command here,
        with open(LAST + ".new", "w") as file:
            file.write(position)
        os.rename(LAST + ".new", LAST)  # then store its position
    client.publish(b"pulsebridge/answers/" + position.encode(), b"done", qos=1)


client, pinged, sent = None, 0, 0
while True:
    try:
        client = client or connect()
        client.check_msg()
        while received:
            execute(client, *received[0])
            received.pop(0)
        if time.time() - pinged >= 20:
            pinged = time.time()
            client.ping()
        if time.time() - sent >= 60:
            sent = time.time()
            reading = b'{"id": "press-6-%d", "temperature": 41.5}' % sent
            client.publish(b"plant/press-6/climate", reading, qos=1)
        time.sleep(0.1)
    except OSError:
        client = None
        time.sleep(2)
