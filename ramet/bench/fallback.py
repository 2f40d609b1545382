"""Text of our own, for a machine whose installed packages bring too little of theirs."""

TEXT = """
A lighthouse keeper writes down the weather at every watch. The pages fill with wind, cloud and the names of ships,
and after forty years they hold a record that no instrument of that time could have made. What seemed a chore to the
keeper is a treasure to those who ask today how the storms of the coast have changed.

Bread needs flour, water, salt and time. Of these the last is the one that most recipes leave out. A dough that rests
in a cool room for a night rises slowly, and the slow work of the yeast makes acids and sugars that a warm hour cannot.

A bridge carries its own weight first. Only what strength is left over may be spent on carts, trains and people. This
is why long bridges look so light: each beam that does not help would have to be carried by all the others.

The post office of a small town sorts letters by street, then by the side of the street, then by the number. A new
carrier learns the order in a week, and keeps it in the hands rather than in the head for the rest of a working life.

Rivers do not flow in straight lines for long. Where the bank is a little softer the water eats into it, the bend grows,
and the current on its outer side becomes faster and eats the more. On the inner side sand comes to rest.

A good index is an act of kindness. Somebody has read the whole book and has thought of the words under which a stranger
might look for each idea in it, including words that the author never used.

Clocks in railway stations once disagreed by minutes from one town to the next, since noon is not at the same moment
everywhere. Trains made that a danger. The timetable did what no ruler had done and gave a whole country one time.

When a violin is made, the maker taps the bare plate and listens. The wood is thinned until the tone is right, a little
here and a little there, and no drawing can say beforehand where that will be.

Snow keeps the ground warm. The air between its crystals hardly moves, so that under half a metre of it seeds and mice
pass a winter that would kill them in the open.

A map that showed everything would be as large as the land and of no use to anybody. The skill of the person who draws
one lies in leaving out, and in leaving out the same kind of thing all over the sheet.

Salt was once carried across deserts on camels and paid for with gold. It kept fish and meat through the winter, and a
town without it could not lay in stores. The roads that it took can still be read from the names of places.

The first thing to do with a machine that has stopped is to write down what it was doing. Most faults are found by
reading such notes, and most of those that are not would have been if the notes had been longer.

Bees tell one another where flowers are by dancing on the comb. The angle of the dance to the vertical is the angle of
the way to the sun, and the length of the waggle is the distance. A bee in the dark reads it with its feelers.

An archive burns only once. A copy in another town costs a little each year, and in all the years in which nothing burns
it looks like waste.

Old walls of dry stone stand because each stone rests on two others. A wall in which one joint stands above the next
comes apart along that line in the first hard frost.

The tide tables of a harbour are made from many waves added together: one for the moon, one for the sun, others for
the tilt of their paths. A machine of brass wheels and one long thread could do that sum a century and a half ago.
"""
