"""Everyday questions for the learning demo: some to train on, others held out.

Each question comes with subject words: beginnings of words that an answer to it is likely to hold and that
the question itself does not hold, so that repeating the question is never taken for answering it. The two
sets share no question and no subject.
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
What is a volcano? | lava magma erupt molten crust ash gas mountain
Why is the sky blue? | scatter light sun wavelength atmosphere air
How do bees make honey? | nectar flower hive pollen comb enzyme
What does the heart do? | blood pump oxygen circulat beat body
What is a poem? | verse rhyme word feeling emotion language literary rhythm
What causes the tides? | moon gravit sun pull sea water
Why do we sleep? | rest brain body energy memor restor repair
What is bread made of? | flour water yeast wheat dough salt
How does a bicycle stay upright? | balance wheel steer momentum gyro rider centrifug gravity
What is a desert? | dry rain sand arid hot water climate
Why do leaves fall in autumn? | tree winter cold water chlorophyll light temperature sun
What is electricity? | electron charge current energy flow power
Tell me about penguins. | bird swim fly antarctic fish feather
How does soap clean? | grease dirt oil water molecule surfactant skin
What is an island? | land water surround sea ocean
Why do cats purr? | content happy sound vibrat relax communicat comfort throat feline pleas
What is a library? | book read borrow information collection knowledge
What are vitamins? | nutrient body health food organic essential
How do plants drink water? | root soil stem absorb leaves xylem
Why does ice float? | dense density water less lighter expand buoy
What is a shadow? | light block object dark
Explain what a calendar is. | day month year date week time
What is music? | sound rhythm melod note instrument art
How does a candle burn? | wax wick flame melt heat oxygen vapor fuel
What is glass made from? | sand silica melt heat quartz
Why do we yawn? | tired brain oxygen sleep bored air breath fatigue
What is a river? | water flow stream sea ocean land
How does a clock work? | time gear hand pendulum spring minute mechanism battery
What is a whale? | mammal ocean sea swim large marine
What do doctors do? | patient health treat medic ill disease diagnos
Why is the ocean salty? | mineral rock river sodium evaporat chloride dissolv
What is a rainbow? | light color colour sun water droplet arc refract
How is paper made? | wood pulp tree fiber fibre water press
What is the stomach for? | food digest acid break nutrient
Why do birds migrate? | food warm winter climate breed cold season temperature
What is a novel? | story book fiction character narrative long plot
How does a magnet work? | field pole iron attract metal force north
What is democracy? | people vote elect government citizen
Describe a giraffe. | neck tall leg africa spot leaves long
What is rust? | iron oxygen metal oxid water corro red
Why do onions make people cry? | gas eye sulf tear enzyme irritat chemical
How do fish breathe? | gill oxygen water dissolv
What is a mountain? | high land peak rock elevat summit tall
What does a lawyer do? | legal client court advi represent
What is yeast? | fung bread dough ferment bak microorganism sugar
Why do stars twinkle? | light atmosphere air turbul refract
How does a refrigerator keep food cold? | heat cool temperature compress air coil evaporat
What is a dictionary? | word meaning defin language book
What is gravity? | force mass pull attract earth object
Tell me about the Amazon rainforest. | tree south brazil species river biodivers animal plant
How do airplanes fly? | wing lift thrust engine drag
What is chocolate made from? | cocoa cacao bean sugar milk butter
Why do dogs wag their tails? | happy emotion excit communicat friendly express signal
What is a muscle? | tissue body move contract fiber strength
What is a budget? | money spend income plan expens financ
How does a telescope work? | light lens mirror distant star magnif object
What is fog? | cloud water droplet air ground visib mist vapor
Why does metal feel cold? | heat conduct hand temperature skin transfer
What is a spider? | leg web eight insect arachnid silk
What is a bridge for? | cross river road span connect water gap structure
How do vaccines protect us? | immun disease antibod virus body infect
What is jazz? | music improvis blues swing rhythm american
What is a battery? | energy store electric power chemical current device
Why do we have seasons? | tilt earth sun axis orbit
What is a bank? | money loan deposit save account financ
How does a zipper work? | teeth slid interlock close pull
What is cheese? | milk dairy curd food protein cow
What are clouds made of? | water droplet ice vapor crystal
Why do people laugh? | joy funny humor humour happy social emotion fun stress
What is a comet? | ice dust sun tail orbit space
How can I remove a coffee stain? | water vinegar soap cloth detergent blot soda rins
What is a kangaroo? | australia pouch hop marsupial jump leg
What does a teacher do? | student learn school class educat
What is the internet? | computer network information web connect global
Why do apples turn brown? | oxygen enzym air oxid react cut ripe
How does a thermometer work? | temperature mercury liquid heat expand measur
What is a glacier? | ice snow mass cold slow
What is a symphony? | orchestra music movement compos instrument
What is an atom? | matter proton electron particle nucle element small
Explain how rain forms. | water cloud vapor evaporat condens droplet
What is a password for? | account access secur protect user login information
Why do we need water? | body hydrat life cell temperature live health organ essential
How do spiders make webs? | silk gland thread spin protein
What is a museum? | art histor collect exhibit object display artifact
What is a fossil? | remain rock ancient preserv plant animal bone organism
Why does bread rise? | yeast gas carbon dough ferment bubble
What is a lighthouse? | ship coast tower sea sailor navigat beacon
How does a camera take a picture? | light lens image sensor film shutter
What is the brain? | organ nerv think body head neuron control
What is tea? | leaves drink beverage plant water hot
What is a frog? | amphibian water jump leg skin pond
Tell me about the city of Paris. | france eiffel capital seine french louvre
Why is exercise good for you? | health heart muscle weight body blood disease mood
How does a key open a lock? | pin turn cylinder tumbler insert rotat
What is a recipe? | cook ingredient food dish instruct meal
What is a tax? | government money income pay fund public
What is bamboo? | grass plant tall tree asia wood grow
How do glasses help people see? | lens light focus eye vision refract
What is a hurricane? | storm wind rain ocean tropical
Why do cows eat grass? | digest stomach nutrient food energy rumen fiber herbivor
What is copper used for? | wir electric conduct pipe coin metal
What is a joke? | funny laugh humor humour amus pun
How do seeds grow into plants? | soil water sun germinat root light sprout
What is a castle? | stone king defen wall medieval fort lord nobl
What is steam? | water vapor gas boil hot heat
What is an orchestra? | music instrument conduct string play
Why do we blink? | eye tear dust moist lubricat clean dry
How does a compass show direction? | north magnet needle earth field point
What is a vegetable? | plant food eat nutrient carrot leaf root edible
What is a parachute? | air fall slow jump drag safe descen land sky
Tell me about elephants. | trunk large mammal africa tusk ear animal land
What is sand? | rock grain mineral quartz particle small beach silica
How does the ear hear? | sound vibrat drum wave brain cochlea
What is a festival? | celebrat event music cultur communit holiday
What is salt used for? | food flavor flavour preserv cook season taste
Why do we have fingerprints? | grip skin unique identi ridge person touch
What is a wheel? | round circular rotat axle vehicle move
What is coal? | carbon fuel rock burn energy fossil black
How do I keep flowers fresh? | water vase stem cut cool sun temperature
What does a farmer do? | crop animal food grow land livestock plant harvest
What is a planet? | orbit star sun earth celestial space
What is wool? | sheep fiber fibre cloth warm fabric animal
Why do volcanoes erupt? | magma pressure gas lava molten surface
How does a pencil work? | graphite lead write paper mark wood
What is a marathon? | run race mile kilomet distance 26
What is rice? | grain food asia crop eat cereal plant seed
What is a cave? | rock underground hollow limestone natural dark
What do ants eat? | sugar insect seed plant food nectar sweet leaves
What is a holiday? | celebrat day rest vacation time famil work religio
How does a kite fly? | wind air lift string drag
What is a robot? | machine task program human automat
What is laughter good for? | stress mood health happ immun endorphin reliev social
What is a tree? | plant trunk leaves branch wood root
What is honesty? | truth trust lie sincer integrity moral
How does a mirror work? | light reflect surface glass image silver
"""

_HELD_OUT = """
What is a tornado? | wind rotat air storm spin column
Why do we dream? | sleep brain memor emotion mind subconscious
How does a microwave oven heat food? | wave water molecule radiation energy electromagnetic vibrat
What is photosynthesis? | plant light sun energy carbon oxygen leaves chlorophyll
What does a kidney do? | blood waste filter urine fluid organ toxin
What is a sonnet? | poem line fourteen 14 rhyme shakespeare verse
What causes earthquakes? | plate tecton fault crust ground seismic
How do boats float? | water buoyan density displac hull weight air
What is butter made from? | milk cream churn fat cow
Why do we get hiccups? | diaphragm breath contract spasm air throat
Tell me about dolphins. | mammal ocean swim intelligent marine water sea
What is a black hole? | gravit light star space mass escape
How does a light bulb produce light? | filament electric current heat glow energy tungsten
What is inflation? | price money goods econom cost purchas
What is a cactus? | desert plant water spine dry succulent thorn
Why do knives get dull? | edge blade metal wear use sharp
How do bats find their way in the dark? | echo sound sonar wave ear
What is an opera? | sing music theat drama stage voice
What are bones made of? | calcium collagen mineral tissue protein phosph
What is a lake? | water land surround fresh body
What does an architect do? | design build plan structure construct
Why do people wear hats? | sun head warm fashion protect styl cold cultur
How is wine made? | grape ferment yeast juice sugar crush
What is a satellite? | orbit earth planet space communicat moon
What is lightning? | electric cloud storm charge thunder discharge
How do I make a cup of coffee? | water bean ground brew boil filter hot grind kettle pot milk
What is a koala? | australia eucalyptus marsupial tree animal
What is a passport? | travel country identi document citizen international
Why is sugar bad for teeth? | bacteria acid decay enamel cavit plaque
How does a boomerang come back? | spin air wing rotat lift curv wind force
What is a mushroom? | fung spore cap edible food organism
Describe the Great Wall of China. | stone built mile long dynasty fort emperor defen kilomet
What is a virus? | cell infect disease host organism microscopic
How does a piano make sound? | hammer string key vibrat note press
What is friendship? | trust people support relationship bond care
Why do we shiver when we are cold? | muscle heat body warm temperature
What is perfume? | scent fragran smell oil alcohol aroma odor odour
What is a dam? | water river wall barrier flood flow hydro
What do owls eat? | mice rodent small insect bird mammal rat prey
How does a lift go up and down in a building? | cable motor pulley elevator rope shaft mechani
What is gold used for? | jewel coin money electron medal currency metal precious
What is a haiku? | japan poem syllable line nature poet
Why do bubbles pop? | air surface pressure water burst thin gas tension
What is a submarine? | water ocean sea ship under vessel boat dive
What is the liver for? | blood toxin bile digest metabol detox nutrient filter
What is an accordion? | instrument music bellow key reed button
What is a garden? | plant flower grow vegetable land herb outdoor green
Why should I brush a dog's coat? | hair fur mat shed clean skin tangle dirt health
"""

TRAINING_QUESTIONS: tuple[Question, ...] = _parse(_TRAINING)
"""Questions the simulated user may ask while the policy learns."""

HELD_OUT_QUESTIONS: tuple[Question, ...] = _parse(_HELD_OUT)
"""Questions kept for the before/after evaluation; never put to the policy while it learns."""
