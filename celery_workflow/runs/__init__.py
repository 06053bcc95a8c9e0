"""Durable runs of workflows: their rows, their steps' messages, and how an app starts and follows them."""
