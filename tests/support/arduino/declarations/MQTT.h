// The part of the library 256dpi/arduino-mqtt 2.5 that the sketch uses: declarations, to compile it without the library.
#pragma once
#include <Client.h>

class MQTTClient {
 public:
  explicit MQTTClient(int size = 128);
  void begin(const char host[], int port, Client &client);
  void onMessage(void (*callback)(String &topic, String &payload));
  void setWill(const char topic[], const char payload[], bool retained, int qos);
  void setCleanSession(bool clean);
  bool connect(const char id[], bool skip = false);
  bool publish(const String &topic, const String &payload, bool retained, int qos);
  bool subscribe(const String &topic, int qos);
  bool loop();
  bool connected();
  bool sessionPresent();
};
