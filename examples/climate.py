"""Typed tables for payloads with several fields: a Zigbee2MQTT climate sensor, and Tasmota with nested objects.

Run it: pulsebridge stream --set 'streaming.modules=["examples/climate.py"]'
"""

from pyspark.sql import DataFrame

from streaming import pipelines as dp


@dp.table(comment="Climate of rooms", cluster_by=["device", "event_time"])
def climate() -> DataFrame:
    return dp.messages(
        "zigbee2mqtt/+device",
        fields="temperature double, humidity double, pressure double, battery int, linkquality int",
        time="$.last_seen",
    )


@dp.table(comment="What Tasmota's AM2301 measures", cluster_by=["device", "event_time"])
def am2301() -> DataFrame:
    return dp.messages(
        "tele/+device/SENSOR",
        fields="Time string, AM2301 struct<Temperature: double, Humidity: double>, TempUnit string",
        columns={"temperature": "AM2301.Temperature", "humidity": "AM2301.Humidity", "unit": "TempUnit"},
        time="$.Time",
        time_zone="Europe/Berlin",
    )
