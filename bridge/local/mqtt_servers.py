"""How the local MQTT brokers are configured and started. Pure: text and command lines, no process, no socket.

Artemis is the default: durable, any user may run it, and what it acknowledged is there after kill -9. Mosquitto is
used where it is asked for and found; it is faster, and loses its queues at kill -9.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from bridge.local.jvm_flags import flags
from bridge.local.sizes import Sizes

__all__ = ["artemis_command", "artemis_files", "mosquitto_config"]

_BROKER_XML = """<?xml version="1.0" encoding="UTF-8"?>
<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>pulsebridge</name>
    <security-enabled>false</security-enabled>
    <jmx-management-enabled>false</jmx-management-enabled>
    <!-- Of each session that begins or ends: only a cluster of brokers reads them. -->
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
    <!-- A publish waits in the journal's buffer at most this long (ns). -->
    <journal-buffer-timeout>{buffer_timeout}</journal-buffer-timeout>
    <disk-scan-period>5000</disk-scan-period>
    <!-- How often unused topics are searched for (below), in ms: half a second of a core with 100,000 topics. -->
    <address-queue-scan-period>10000</address-queue-scan-period>
    <!-- With MQTT a thread of this pool waits until the journal has a session's state, and another one of the pool must
         tell it so: with the default, 30, as many devices that connect at once stop the broker for good (AMQ850000). -->
    <thread-pool-max-size>-1</thread-pool-max-size>
    <!-- Above this share each PUBLISH drops its connection (H32); the stack refuses to start there. -->
    <max-disk-usage>{max_disk_usage}</max-disk-usage>
    <global-max-size>{memory}M</global-max-size>
    <!-- MQTT's own signs: with the default ones, + matches no level that has a dot, and a backslash comes doubled. -->
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
        <!-- A session's queue lives as long as the session, not as long as it has messages or consumers. -->
        <auto-delete-queues>false</auto-delete-queues>
        <!-- A topic takes 12 KB, and a device can invent as many as it likes: those that no subscription names and of
             which no message waits go again, also where one with a wildcard matches them (which the usage check would
             take for use). -->
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

# Security is off on this loopback acceptor, but the server wants a login domain to exist.
_LOGIN_CONFIG = """activemq {
  org.apache.activemq.artemis.spi.core.security.jaas.GuestLoginModule sufficient
    org.apache.activemq.jaas.guest.user="guest" org.apache.activemq.jaas.guest.role="guest";
};
"""

_LOG4J = """rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
logger.audit.name = org.apache.activemq.audit
logger.audit.level = OFF
# A line for each topic that comes, without a dead letter queue, and goes.
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

    One acceptor, MQTT on 127.0.0.1; no user, no web console. ``fsync`` flushes the journal to the disk at each
    acknowledgement (a power cut loses nothing), else it is mapped memory (a killed process loses nothing).
    """
    options = ";".join(
        (
            "useEpoll=true",
            "tcpNoDelay=true",
            # What waits there for a subscriber of MQTT 3.1.1 takes packet identifiers, of which there are 65,535: without
            # a free one this version hangs, and it keeps those that an ended connection left unacknowledged.
            "tcpSendBufferSize=65536",
            "writeBufferHighWaterMark=65536",
            "writeBufferLowWaterMark=16384",
            "tcpReceiveBufferSize=1048576",
            # The most that MQTT 5 lets a client announce; ours announce their own window.
            "receiveMaximum=65535",
            # A second connection with the same client id takes the session over, as MQTT says.
            "allowLinkStealing=true",
            # No expiry of sessions but the one a client asks for.
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
        # In seconds; each minute by default, and with 100,000 addresses a second of a core. What it counts, messages on
        # pages, is counted anew at a start.
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
