"""What is published at an MQTT broker: listened to for a while, counted in bounded memory, with rules proposed."""
