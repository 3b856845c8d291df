"""Everyday questions for the learning demo: some to train on, others held out.

Each question comes with subject words: beginnings of words that an answer to it is likely to hold and that
the question itself does not hold, so that repeating the question is never taken for answering it. The two
sets share no question and no subject.

The questions are ones that the default model knows something about: of 214 written down, those were kept where the
first sentence of the untrained base's greedy answer was on topic. Which of them are held out was drawn by lot,
before anything was trained.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question and the beginnings of words by which an answer to it is known to be on topic."""

    text: str
    subject_words: tuple[str, ...]


def _parse(table: str) -> tuple[Question, ...]:
    """Read `question | word word ...` lines; a `_` in a word stands for a space."""
    questions = []
    for line in table.strip().splitlines():
        text, _, words = line.partition("|")
        subject_words = tuple(word.replace("_", " ") for word in words.lower().split())
        questions.append(Question(text=text.strip(), subject_words=subject_words))
    return tuple(questions)


_TRAINING = """
What is a volcano? | lava magma erupt molten crust ash gas mountain rock earth opening
What does the heart do? | blood pump oxygen circulat beat body organ muscle
What is a poem? | verse rhyme word feeling emotion language literary rhythm writ express art
What is a desert? | dry rain sand arid hot water climate vast land barren vegetation
What is electricity? | electron charge current energy flow power
Tell me about penguins. | bird swim fly antarctic fish feather flightless cold creature ocean animal wild tail beak
What is a library? | book read borrow information collection knowledge place people visit communit
Explain what a calendar is. | day month year date week time track organi schedul
What is music? | sound rhythm melod note instrument art expression
What is a river? | water flow stream sea ocean land
What is a whale? | mammal ocean sea swim large marine creature animal wild tail fur predator
What do doctors do? | patient health treat medic ill disease diagnos work job profession skill expert
What is photosynthesis? | plant light sun energy carbon oxygen leaves chlorophyll glucose
What does a kidney do? | blood waste filter urine fluid organ toxin
What is a sonnet? | poem poet line fourteen 14 rhyme shakespeare verse
What causes earthquakes? | plate tecton fault crust ground seismic movement
Tell me about dolphins. | mammal ocean swim intelligent marine water sea social creature animal wild tail fur predator
What is a lake? | water land surround fresh body
What is a passport? | travel country identi document citizen international
What is a mushroom? | fung spore cap edible food organism
Describe the Great Wall of China. | stone built mile long dynasty fort emperor defen kilomet massive structure
What is a virus? | cell infect disease host organism microscopic
What is perfume? | scent fragran smell oil liquid alcohol aroma odor odour
What is gold used for? | jewel coin money electron medal currency metal precious
What is a haiku? | japan poem poet syllable line nature
What is a submarine? | water ocean sea ship under vessel boat dive
What is the liver for? | blood toxin bile digest metabol detox nutrient filter organ body
What is an accordion? | instrument music bellow key reed button musician sound play
What is a tornado? | storm wind rotat column air funnel destruct weather atmosphere sky nature natural
What is an eclipse? | sun moon shadow earth block align celestial event
What is ice cream? | milk sugar frozen dessert sweet dair treat cold food eat taste flavor flavour ingredient drink
What is a fable? | story moral animal lesson tale
What is a tiger? | cat stripe animal mammal predator carnivor wild large creature tail fur
What is a ballad? | song poem music narrative stor verse love
What is a peninsula? | land water surround sea ocean
What is a debt? | money owe loan obligation borrow pay financial
What is a telescope? | star light lens distant planet sky instrument observ see device
What is a microscope? | lens small magnif tiny cell instrument object device see
What is a drum? | instrument beat percussion rhythm music sound musician play
What is a castle? | stone wall fort king building defen medieval structure noble place people visit communit
What is a lighthouse? | ship sea coast tower beacon navigat
What is a bridge? | river road cross structure span connect water
What is a tunnel? | underground passage road through mountain rail
What is an elephant? | animal trunk large mammal tusk ear land creature wild tail fur predator
What is a giraffe? | neck animal tall mammal africa leaf long creature wild tail fur predator
What is a spider? | web leg insect eight silk arachnid arthropod prey creature species order animal wild tail predator
What is a shark? | fish ocean sea teeth predator water fin marine creature animal wild tail
What is a wolf? | animal dog pack predator wild mammal carnivor creature tail fur
What is a bear? | animal mammal large fur forest carnivor creature wild tail predator
What is an eagle? | bird prey wing fly feather large creature animal wild tail beak predator
What is a turtle? | shell reptile water animal slow creature wild tail predator
What is a snake? | reptile animal venom scale leg long creature wild tail predator
What is a kangaroo? | australia marsupial pouch animal hop mammal creature wild tail fur predator
What is a bee? | insect honey pollin flower hive creature animal wild tail predator
What is an ant? | insect colon small social creature animal wild tail predator
What is a tree? | plant leaf leaves trunk wood branch root tall
What is a flower? | plant petal bloom pollen seed color
What is moss? | plant green damp grow small
What is a forest? | tree plant animal wood land area ecosystem nature place people visit communit
What is a valley? | mountain hill land river low between
What is a cave? | underground rock hole natural earth hollow chamber
What is rain? | water drop cloud fall sky precipitation natural weather atmosphere storm nature
What is snow? | ice water cold frozen crystal winter white precipitation weather atmosphere storm sky nature natural
What is fog? | water cloud air vapor droplet visib mist moisture atmospher weather atmosphere storm sky nature natural
What is wind? | air move flow atmosphere pressure natural weather storm sky nature
What is a rainbow? | light color sun sky water arc weather atmosphere storm nature natural
What is a hurricane? | storm wind ocean tropical rain weather atmosphere sky nature natural
What is the Moon? | earth orbit satellite sky natural night celestial
What is the Sun? | star light heat energy planet solar earth
What is a planet? | orbit star sun celestial space body
What is a star? | light gas sun space sky nuclear celestial
What is a comet? | ice dust sun tail orbit space celestial body
What is a galaxy? | star space gas milky universe
What is gravity? | force pull mass object attract earth
What is magnetism? | force attract iron pole metal field charge
What is energy? | work power heat force abilit
What is heat? | energy temperature warm hot thermal
What is a computer? | data program machine device information process electronic software calculat
What is a telephone? | call voice talk communicat device sound
What is a camera? | photo picture image lens light device capture
What is a radio? | sound signal wave broadcast music device communicat
What is a television? | watch screen picture image show broadcast device
What is a robot? | machine task human program device automat
What is the Internet? | network computer information connect web global
What is a car? | vehicle drive engine wheel road transport people travel
What is an airplane? | fly wing travel engine aircraft passenger
What is a helicopter? | fly rotor air aircraft blade
What is a ship? | water sea boat sail vessel ocean transport cargo
What is a bus? | passenger vehicle transport people road public carry
What is a rocket? | space engine fuel launch vehicle thrust
What is a school? | student learn teach education child communit place people visit knowledge
What is a museum? | art history object exhibit display collection cultur place people visit communit
What is a bank? | money loan save account financial deposit place people visit communit rob credit
What is a farm? | crop animal grow food land agricultur place people visit communit
What is a bakery? | bread cake pastr food place people visit communit
What is bread? | flour dough bake food wheat yeast eat taste flavor flavour ingredient drink
What is cheese? | milk dairy food curd eat taste flavor flavour ingredient drink
What is chocolate? | cocoa sweet bean sugar food candy treat eat taste flavor flavour ingredient drink
What is tea? | leaf leaves drink water beverage hot food eat taste flavor flavour ingredient
What is coffee? | bean drink beverage caffeine brew food eat taste flavor flavour ingredient
What is salt? | sodium mineral chlor food crystal eat taste flavor flavour ingredient drink
What is sugar? | sweet carbohydrate food glucose eat taste flavor flavour ingredient drink
What is soup? | liquid broth vegetable meat dish food hot eat taste flavor flavour ingredient drink
What is pizza? | cheese dough tomato italian food bread topping eat taste flavor flavour ingredient drink
What is rice? | grain food crop staple cereal eat taste flavor flavour ingredient drink
What is an apple? | fruit tree red sweet eat food taste flavor flavour ingredient drink
What is a banana? | fruit yellow tropical sweet eat peel food taste flavor flavour ingredient drink
What is a potato? | vegetable tuber root food starch plant eat taste flavor flavour ingredient drink
What is a carrot? | vegetable root orange plant edible food eat taste flavor flavour ingredient drink
What is a tomato? | fruit vegetable red plant food eat taste flavor flavour ingredient drink
What is an onion? | vegetable bulb plant flavor layer edible food eat taste flavour ingredient drink
What is a painting? | art color canvas image picture
What is theatre? | stage act perform play audience art
What is dance? | move music art body rhythm
What is a film? | movie story picture image screen motion visual art camera
What is a newspaper? | print information daily article publication
What is an encyclopedia? | knowledge information book article reference
What is a map? | place land location earth area geograph represent direction
What is a compass? | direction north navigat magnet needle
What is a thermometer? | temperature measure heat device instrument
What is a clinic? | patient doctor medical health care treat place people visit communit
What is a dentist? | teeth tooth oral mouth dental work job profession skill expert
What is a nurse? | patient care health hospital medical work job profession skill expert
What is a lawyer? | legal court client work job profession skill expert
What is a carpenter? | wood build furniture construct work job profession skill expert
What is a chef? | cook food kitchen restaurant meal work job profession skill expert
What does a plumber do? | pipe water install repair leak drain fix tradesman work job profession skill expert
What do lungs do? | breath air oxygen organ blood body carbon
What does the brain do? | think thought body control organ memor nerv function process
What does the stomach do? | food digest acid organ body
What is skin? | body organ protect outer layer barrier
What is a muscle? | body move tissue contract strength
What is blood? | body oxygen cell fluid red heart
What is DNA? | gene genetic molecule inherit cell
What is a law? | rule govern legal society
What is money? | buy exchange currency value goods trade medium pay wealth econom
What is inflation? | price money goods econom cost purchas value
What is a holiday? | celebrat rest work day festiv special time
What is a wedding? | marri ceremony couple love union celebrat
What is football? | ball team goal sport player game
What is swimming? | water body move sport exercise pool
What is a marathon? | run race long distance mile kilomet
What is a mirror? | reflect glass image surface light
What is a blanket? | warm bed cover fabric cloth sleep
What is a hammer? | tool nail hit metal handle
What is a knife? | cut sharp blade tool
What is a wheel? | round rotat circular vehicle axle turn
What is a chair? | sit seat furniture leg back
What is paper? | wood write material pulp sheet thin
What is plastic? | material polymer synthetic oil
What is cotton? | plant fabric fiber fibre soft cloth
What is silk? | fabric worm fiber fibre soft cloth
"""

_HELD_OUT = """
What is wool? | sheep fiber fibre warm fabric animal
What is a candle? | wax wick light flame burn
What is a train? | rail track vehicle travel passenger transport move people carriage station carry
What is an owl? | bird night nocturnal prey eye wing creature animal wild tail feather beak predator hunt eyes
What is a glacier? | ice snow slow cold mass mountain frozen
What is a mountain? | high land peak tall rock rise elevat terrain nature natural climb
What is a king? | ruler country monarch power crown leader royal job profession skill expert rule reign throne nation
What is light? | wave energy electromagnetic see eye radiation visible bright glow
What is a black hole? | gravit light star space mass escape universe matter
What is a satellite? | orbit earth planet space communicat moon object device
What is glass? | sand transparent material silica window drink clear fragile
What is a restaurant? | food eat meal serve dish place people visit communit
What is a farmer? | crop food animal land grow agricultur work job profession skill expert field harvest plant
What is a hospital? | patient doctor sick medical health care treat place people visit communit help heal
What is a tax? | money government pay income public
What is honey? | bee sweet nectar flower sugar syrup food eat taste flavor flavour ingredient drink golden
What is a needle? | sew sharp thin thread point small medic slender sewing tool metal
What is oxygen? | gas air breath element atmosphere colorless life
What is a beach? | sand sea ocean water shore coast place people visit communit relax sun
What is a horse? | animal ride mammal hoof leg mane large creature wild tail fur predator run strong
What is an opera? | sing music theat drama stage voice art perform singer
What is a cell? | life living organism basic unit membrane tiny
What is a bicycle? | wheel pedal ride vehicle transport two
What is an ocean? | water salt sea earth vast body
What does an architect do? | design build plan structure construct work job profession skill expert
What is a violin? | string bow instrument music sound wood musician play
What is sound? | wave vibrat hear ear air noise music loud voice
What is a sculpture? | art stone three shape carv form statue artist clay
What is a novel? | book story fiction narrative writ literature character
What is a camel? | desert hump animal water mammal creature large wild tail fur predator
What is a clock? | time hour minute device track
What is a dam? | water river wall barrier flood flow hydro structure lake reservoir
What is a battery? | energy power electric charge chemical store device
What is grass? | plant green lawn grow blade field animal
What is a koala? | australia eucalyptus marsupial tree animal mammal creature wild tail fur predator
What is yoga? | body breath mind exercise pose practice exercis
What is a rabbit? | animal ear mammal fur small hop creature wild tail predator
What is an island? | land water surround sea ocean isolated
What is a cactus? | desert plant water spine dry succulent thorn
What is a piano? | key instrument music string play sound musician
What is a teacher? | student learn school educat knowledge profession skill expert guide lesson child class instruct
What is chess? | board game piece player strateg king strategy
What is a guitar? | string instrument music chord play sound musician
What is a frog? | amphibian water jump leg skin green animal creature wild tail predator
What are vitamins? | nutrient body health food organic essential
What is lightning? | electric cloud storm charge thunder discharge weather atmosphere sky nature natural
What is democracy? | people vote government elect citizen power
What is a garden? | plant flower grow vegetable land herb outdoor green nature place people visit communit
"""

TRAINING_QUESTIONS: tuple[Question, ...] = _parse(_TRAINING)
"""Questions the simulated user may ask while the policy learns."""

HELD_OUT_QUESTIONS: tuple[Question, ...] = _parse(_HELD_OUT)
"""Questions kept for the before/after evaluation; never put to the policy while it learns."""
