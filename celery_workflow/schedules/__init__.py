"""Durable schedules: what fires when, and that it fires once."""
