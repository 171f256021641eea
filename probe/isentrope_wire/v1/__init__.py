"""Version 1 of the wire: `telemetry.proto` and the code generated from it (`make proto`)."""
