# No compiled module uses what is in here.
