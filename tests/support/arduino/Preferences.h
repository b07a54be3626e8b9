#pragma once
#include <Arduino.h>

class Preferences {
 public:
  bool begin(const char *space, bool) { return folder = space, true; }
  String getString(const char *name, const char *other) {
    char text[512];
    FILE *file = std::fopen(path(name).c_str(), "r");
    if (!file) return String(other);
    const bool found = std::fgets(text, sizeof text, file) != nullptr;
    std::fclose(file);
    return String(found ? text : other);
  }
  size_t putString(const char *name, const String &value) {
    FILE *file = std::fopen(path(name).c_str(), "w");
    if (!file) return 0;
    std::fputs(value.c_str(), file);
    return std::fclose(file) == 0 ? value.length() : 0;
  }

 private:
  std::string folder;
  std::string path(const char *name) { return folder + "." + name; }
};
