"""A bank, a telecom and a retailer as the nodes of a Flower federation."""
