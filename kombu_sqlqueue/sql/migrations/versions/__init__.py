"""One module a change, numbered. A released one never changes again."""
