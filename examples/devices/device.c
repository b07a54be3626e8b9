/* A device in C with Mosquitto's client library: MQTT 3.1.1, and push.position_in: topic. cc device.c -lmosquitto */
#include <mosquitto.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BROKER "127.0.0.1"
#define PORT 1883
#define COMMANDS "devices/press-8/commands/"
#define STATUS "devices/press-8/status"
#define LAST "press-8.position"
#define SIZE 512

static const char *last(char *text) {
  FILE *file = fopen(LAST, "r");
  text[0] = 0;
  if (file) {
    if (!fgets(text, SIZE, file)) text[0] = 0;
    fclose(file);
  }
  return text;
}

static void store(const char *position) {
  FILE *file = fopen(LAST ".new", "w");
  if (!file) return;
  fputs(position, file);
  if (!fclose(file)) rename(LAST ".new", LAST);
}

static int after(const char *position, const char *other) {
  const char *form = "%lld/%lld/%lld/%lld/%lld";
  long long a[5], b[5];
  if (sscanf(position, form, a, a + 1, a + 2, a + 3, a + 4) != 5) return 0;
  if (sscanf(other, form, b, b + 1, b + 2, b + 3, b + 4) != 5) return 1;
  for (int n = 0; n < 5; n++)
    if (a[n] != b[n]) return a[n] > b[n];
  return 0;
}

static void on_connect(struct mosquitto *m, void *data, int code, int flags) {
  char text[SIZE];
  (void)data;
  if (code) return;
  mosquitto_subscribe(m, NULL, COMMANDS "#", 1);
  mosquitto_publish(m, NULL, STATUS, 6, "online", 1, true);
  if (!(flags & 1) && *last(text)) /* the broker lost the session */
    mosquitto_publish(m, NULL, "pulsebridge/resume/press-8", (int)strlen(text), text, 1, false);
}

static void on_message(struct mosquitto *m, void *data, const struct mosquitto_message *command) {
  char position[SIZE], answer[SIZE + 32], text[SIZE];
  (void)data;
  if (snprintf(position, SIZE, "%s", command->topic + strlen(COMMANDS)) >= SIZE) return;
  char *repeat = strstr(position, "/repeat");
  if (repeat) *repeat = 0;
  if (strcmp(position, last(text)) && (!repeat || after(position, text))) {
    printf("execute %.*s\n", command->payloadlen, (char *)command->payload); /* act on the command here, */
    fflush(stdout);
    store(position); /* then store its position */
  }
  snprintf(answer, sizeof answer, "pulsebridge/answers/%s", position);
  mosquitto_publish(m, NULL, answer, 4, "done", 1, false);
}

int main(void) {
  time_t sent = 0;
  char reading[128];
  mosquitto_lib_init();
  struct mosquitto *m = mosquitto_new("press-8", false, NULL);
  if (!m) return 1;
  mosquitto_connect_with_flags_callback_set(m, on_connect);
  mosquitto_message_callback_set(m, on_message);
  mosquitto_will_set(m, STATUS, 7, "offline", 1, true);
  while (mosquitto_connect(m, BROKER, PORT, 60)) sleep(1);
  for (;;) {
    if (mosquitto_loop(m, 1000, 1)) {
      sleep(1);
      mosquitto_reconnect(m);
    } else if (time(NULL) - sent >= 60) {
      sent = time(NULL);
      int size = snprintf(reading, sizeof reading, "{\"id\": \"press-8-%ld\", \"temperature\": 41.5}", (long)sent);
      mosquitto_publish(m, NULL, "plant/press-8/climate", size, reading, 1, false);
    }
  }
}
