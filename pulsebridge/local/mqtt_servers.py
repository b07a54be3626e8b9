"""Configuration and command lines of the local MQTT brokers.

Artemis is the default: any user can run it, and it is durable: it has all acknowledged messages after kill -9.
Mosquitto is used on request if it is installed; it is faster, but loses its queues on kill -9.

Artemis 2.40 overflows its stack at a topic of ten thousand levels, and refuses more than half a megabyte of properties.
It may route several publishes in flight of one client out of order. It counts unacknowledged messages of earlier
connections against Receive Maximum (``bridge.ingest.worker``). With MQTT 3.1 and 3.1.1 it needs a small send buffer
(below): without a free packet identifier it hangs (ARTEMIS-5467).
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from pulsebridge.local.jvm_flags import flags
from pulsebridge.local.sizes import Sizes

__all__ = ["artemis_command", "artemis_files", "mosquitto_config"]

_BROKER_XML = """<?xml version="1.0" encoding="UTF-8"?>
<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>pulsebridge</name>
    <security-enabled>false</security-enabled>
    <jmx-management-enabled>false</jmx-management-enabled>
    <!-- Only a cluster of brokers reads the notifications of the start and end of each session. -->
    <suppress-session-notifications>true</suppress-session-notifications>
    <persistence-enabled>true</persistence-enabled>
    <journal-type>{journal_type}</journal-type>
    <journal-datasync>{fsync}</journal-datasync>
    <journal-sync-transactional>true</journal-sync-transactional>
    <journal-sync-non-transactional>true</journal-sync-non-transactional>
    <journal-directory>{data}/journal</journal-directory>
    <bindings-directory>{data}/bindings</bindings-directory>
    <paging-directory>{data}/paging</paging-directory>
    <large-messages-directory>{data}/large-messages</large-messages-directory>
    <journal-min-files>2</journal-min-files>
    <journal-pool-files>10</journal-pool-files>
    <journal-file-size>10M</journal-file-size>
    <!-- Longest wait of a publish in the journal's buffer (ns). -->
    <journal-buffer-timeout>{buffer_timeout}</journal-buffer-timeout>
    <disk-scan-period>5000</disk-scan-period>
    <!-- Interval of the search for unused topics (below), in ms: half a second of a core with 100,000 topics. -->
    <address-queue-scan-period>10000</address-queue-scan-period>
    <!-- With MQTT a thread of this pool waits until the journal has stored a session's state, and another thread of it
         must notify it: with the default, 30, as many concurrent connects stop the broker for good (AMQ850000). -->
    <thread-pool-max-size>-1</thread-pool-max-size>
    <!-- Above this share each PUBLISH drops its connection (H32), so the stack refuses to start above it. -->
    <max-disk-usage>{max_disk_usage}</max-disk-usage>
    <global-max-size>{memory}M</global-max-size>
    <!-- MQTT's wildcards: with the defaults, + does not match a level with a dot, and a backslash arrives doubled. -->
    <wildcard-addresses>
      <routing-enabled>true</routing-enabled>
      <delimiter>/</delimiter>
      <any-words>#</any-words>
      <single-word>+</single-word>
    </wildcard-addresses>
    <critical-analyzer>true</critical-analyzer>
    <critical-analyzer-policy>LOG</critical-analyzer-policy>
    <acceptors>
      <acceptor name="mqtt">tcp://127.0.0.1:{port}?protocols=MQTT;{options}</acceptor>
    </acceptors>
    <address-settings>
      <address-setting match="#">
        <!-- The default, 10, sends a message to the dead letter queue after ten reconnects: a loss. -->
        <max-delivery-attempts>-1</max-delivery-attempts>
        <redelivery-delay>0</redelivery-delay>
        <address-full-policy>PAGE</address-full-policy>
        <max-size-bytes>{address_memory}M</max-size-bytes>
        <page-size-bytes>2M</page-size-bytes>
        <max-read-page-messages>-1</max-read-page-messages>
        <max-read-page-bytes>8M</max-read-page-bytes>
        <auto-create-queues>true</auto-create-queues>
        <auto-create-addresses>true</auto-create-addresses>
        <!-- A session's queue exists as long as the session, not as long as it has messages or consumers. -->
        <auto-delete-queues>false</auto-delete-queues>
        <!-- A topic uses 12 KB, and a device can create any number: the broker deletes one without messages that no
             subscription names, also if a wildcard subscription matches it (for the usage check that is a use). -->
        <auto-delete-addresses>true</auto-delete-addresses>
        <auto-delete-addresses-skip-usage-check>true</auto-delete-addresses-skip-usage-check>
      </address-setting>
    </address-settings>
  </core>
</configuration>
"""

_BOOTSTRAP_XML = """<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<broker xmlns="http://activemq.apache.org/schema">
  <jaas-security domain="activemq"/>
  <server configuration="{uri}/broker.xml"/>
</broker>
"""

_MANAGEMENT_XML = """<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<management-context xmlns="http://activemq.apache.org/schema"/>
"""

# Security is off on this loopback acceptor, but the server requires a login domain.
_LOGIN_CONFIG = """activemq {
  org.apache.activemq.artemis.spi.core.security.jaas.GuestLoginModule sufficient
    org.apache.activemq.jaas.guest.user="guest" org.apache.activemq.jaas.guest.role="guest";
};
"""

_LOG4J = """rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
logger.audit.name = org.apache.activemq.audit
logger.audit.level = OFF
# Suppresses the lines for each topic that is created (without a dead letter queue) or deleted.
logger.server.name = org.apache.activemq.artemis.core.server
logger.server.filter.topics.type = RegexFilter
logger.server.filter.topics.regex = AMQ(222165|222166|224113).*
logger.server.filter.topics.onMatch = DENY
logger.server.filter.topics.onMismatch = NEUTRAL
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5level [%logger] %msg%n
"""


def artemis_files(*, port: int, instance: Path, sizes: Sizes, fsync: bool, max_disk_usage: int = 98) -> dict[str, str]:
    """Return the files of an Artemis instance's ``etc``: name → text.

    They have one acceptor, MQTT on 127.0.0.1, no user and no web console. With ``fsync`` each acknowledgement flushes
    the journal to the disk, so a power cut loses nothing. Else it is mapped memory, so a killed process loses nothing.
    """
    options = ";".join(
        (
            "useEpoll=true",
            "tcpNoDelay=true",
            # Messages that wait in it for an MQTT 3.1.1 subscriber use packet identifiers, of which 65,535 exist.
            # Without a free one this version hangs; it keeps the unacknowledged ones of an ended connection.
            "tcpSendBufferSize=65536",
            "writeBufferHighWaterMark=65536",
            "writeBufferLowWaterMark=16384",
            "tcpReceiveBufferSize=1048576",
            # The maximum of MQTT 5; the clients of Pulsebridge announce their own window.
            "receiveMaximum=65535",
            # A second connection with the same client id takes over the session, as MQTT requires.
            "allowLinkStealing=true",
            # Sessions expire only if a client requests it.
            "defaultMqttSessionExpiryInterval=-1",
        )
    )
    broker = _BROKER_XML.format(
        journal_type="NIO" if fsync else "MAPPED",
        fsync=str(fsync).lower(),
        max_disk_usage=max_disk_usage,
        buffer_timeout=1_000_000 if fsync else 100_000,
        data=escape(str(instance / "data")),
        memory=sizes.mqtt_heap // 2,
        address_memory=max(16, sizes.mqtt_heap // 8),
        port=port,
        options=escape(options),
    )
    return {
        "broker.xml": broker,
        "bootstrap.xml": _BOOTSTRAP_XML.format(uri=escape((instance / "etc").as_uri())),
        "management.xml": _MANAGEMENT_XML,
        "login.config": _LOGIN_CONFIG,
        "log4j2.properties": _LOG4J,
    }


def artemis_command(*, java: Path, home: Path, instance: Path, sizes: Sizes, quick: bool) -> list[str]:
    """Return the command line of Artemis on an instance folder that ``artemis_files`` filled."""
    properties = {
        "java.security.auth.login.config": str(instance / "etc/login.config"),
        "artemis.home": str(home),
        "artemis.instance": str(instance),
        "artemis.instance.etc": str(instance / "etc"),
        "data.dir": str(instance / "data"),
        "java.io.tmpdir": str(instance / "tmp"),
        "log4j2.configurationFile": (instance / "etc/log4j2.properties").as_uri(),
        "log4j2.disableJmx": "true",
        "java.net.preferIPv4Stack": "true",
        # In seconds. The default, each minute, uses a second of a core with 100,000 addresses. At its start the broker
        # recounts the messages on pages.
        "artemis.paging.counter.snapshot.interval": "86400",
    }
    return [
        str(java / "bin/java"),
        f"-Xms{sizes.mqtt_heap // 2}m",
        f"-Xmx{sizes.mqtt_heap}m",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        *flags(quick=quick),
        "--add-opens",
        "java.base/jdk.internal.misc=ALL-UNNAMED",
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-classpath",
        str(home / "lib/artemis-boot.jar"),
        "org.apache.activemq.artemis.boot.Artemis",
        "run",
    ]


def mosquitto_config(*, port: int, data: Path) -> str:
    """Return mosquitto.conf: loopback, anonymous, persistent, queues a thousand times the default length."""
    return "\n".join(
        (
            f"listener {port} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {data}/",
            "autosave_interval 5",
            "max_queued_messages 1000000",
            "max_inflight_messages 0",
            "set_tcp_nodelay true",
            "log_dest stderr",
            "log_type error",
            "log_type warning",
            "log_type notice",
            "",
        )
    )
