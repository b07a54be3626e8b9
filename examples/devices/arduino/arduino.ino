// A device with an ESP32 and the library 256dpi/arduino-mqtt: MQTT 3.1.1, and push.position_in: topic.
#include <MQTT.h>
#include <Preferences.h>
#include <WiFi.h>

const char BROKER[] = "127.0.0.1";
const int PORT = 1883;
const String COMMANDS = "devices/press-7/commands/";
const int MOST = 8;

WiFiClient network;
MQTTClient client(1024);
Preferences flash;
String topics[MOST], payloads[MOST];  // a callback must not publish
int waiting = 0;
unsigned long sent = 0;

void onMessage(String &topic, String &payload) {
  if (waiting == MOST) return;  // not answered, so it comes again
  topics[waiting] = topic;
  payloads[waiting++] = payload;
}

bool after(const String &position, const String &last) {
  long long a[5], b[5];
  const char *form = "%lld/%lld/%lld/%lld/%lld";
  if (sscanf(position.c_str(), form, a, a + 1, a + 2, a + 3, a + 4) != 5) return false;
  if (sscanf(last.c_str(), form, b, b + 1, b + 2, b + 3, b + 4) != 5) return true;
  for (int n = 0; n < 5; n++)
    if (a[n] != b[n]) return a[n] > b[n];
  return false;
}

void execute(const String &topic, const String &payload) {
  String position = topic.substring(COMMANDS.length());
  bool repeated = position.endsWith("/repeat");
  if (repeated) position = position.substring(0, position.length() - 7);
  String last = flash.getString("last", "");
  if (position != last && (!repeated || after(position, last))) {
    Serial.println("execute " + payload);  // act on the command here,
    flash.putString("last", position);     // then store its position
  }
  client.publish("pulsebridge/answers/" + position, "done", false, 1);
}

void connectDevice() {
  client.setWill("devices/press-7/status", "offline", true, 1);
  client.setCleanSession(false);
  while (!client.connect("press-7")) delay(1000);
  client.subscribe(COMMANDS + "#", 1);
  client.publish("devices/press-7/status", "online", true, 1);
  String last = flash.getString("last", "");
  if (!client.sessionPresent() && last.length()) client.publish("pulsebridge/resume/press-7", last, false, 1);
}

void setup() {
  Serial.begin(115200);
  flash.begin("press-7", false);
  WiFi.begin("network", "password");
  while (WiFi.status() != WL_CONNECTED) delay(100);
  client.begin(BROKER, PORT, network);
  client.onMessage(onMessage);
}

void loop() {
  if (!client.connected()) connectDevice();
  client.loop();
  for (int n = 0; n < waiting; n++) execute(topics[n], payloads[n]);
  waiting = 0;
  if (sent == 0 || millis() - sent >= 60000) {
    sent = millis();
    client.publish("plant/press-7/climate", "{\"id\": \"press-7-" + String(sent) + "\", \"temperature\": 41.5}", false, 1);
  }
  delay(10);
}
