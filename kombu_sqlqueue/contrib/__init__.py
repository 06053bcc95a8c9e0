"""What other people's programs need to get along with us. Nothing here imports them."""
