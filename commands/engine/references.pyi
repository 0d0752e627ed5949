# Compiled handlers alone use what is in here.
