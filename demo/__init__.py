"""The demonstration: real data through a broker that is killed in the middle."""
