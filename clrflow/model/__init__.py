"""The two towers, in plain torch: they read looked-up rows and know nothing of how tables are sharded.

tables.py       which embedding tables there are and which row a thing has
item_tower.py   an item's rows and content → its token (what histories show) and its unit vector (what is retrieved)
user_tower.py   history tokens + condition tokens → one unit vector a condition
losses.py       sampled softmax with logQ correction and masks
two_tower.py    all of it together; the training loop calls this
"""
