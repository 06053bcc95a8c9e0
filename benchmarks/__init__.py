"""How quick we are, side by side with what people use today. `make bench` runs it all."""
