"""The table et_collectives: collectives and transfers as execution traces have them."""
