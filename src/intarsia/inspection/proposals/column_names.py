"""Tell by a column's name whether it is a label, an id or an amount, in several languages."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

# names of columns to predict, the most usual first; without accents, as `words` gives them
LABELS = (
    *("label", "target", "default", "defaulted", "outcome", "churn", "churned", "diagnosis"),
    *("fraud", "survived", "died", "dead", "deceased", "death", "mortality", "readmitted"),
    *("readmission", "relapse", "recurrence", "recovered", "cured", "converted", "purchased"),
    *("attrition", "cancelled", "canceled", "cancellation", "lapsed", "exited", "terminated"),
    *("spam", "severity", "response", "class", "event"),
    # German, French, Spanish, Italian, Portuguese, Dutch, Polish, Scandinavian
    *(
        "schweregrad",
        "ziel",
        "zielvariable",
        "zielgrosse",
        "ausfall",
        "diagnose",
        "klasse",
        "ergebnis",
        "befund",
    ),
    *(
        "kundigung",
        "kuendigung",
        "gekundigt",
        "gekuendigt",
        "storniert",
        "betrug",
        "abwanderung",
        "gestorben",
        "verstorben",
        "uberlebt",
        "wiederaufnahme",
        "rehospitalisierung",
    ),
    *("cible", "classe", "resultat", "diagnostic", "defaut", "etiquette", "fraude", "deces"),
    *("objetivo", "clase", "resultado", "diagnostico", "etiqueta", "impago", "fallecido"),
    *("bersaglio", "obiettivo", "esito", "diagnosi", "etichetta", "frode", "insolvenza", "decesso"),
    *("alvo", "rotulo", "inadimplencia", "inadimplente", "desfecho", "obito", "cancelamento"),
    *("doel", "uitkomst", "klass", "utfall", "malvariabel", "klasa", "wynik", "diagnoza", "cel"),
    # Russian, Chinese, Japanese
    *("цель", "метка", "класс", "диагноз", "дефолт", "исход"),
    *("标签", "目标", "类别", "诊断", "违约", "目的変数", "診断", "結果"),
    "y",
)
# of these, the names that say nothing but that a column is to be predicted
_PLAIN = {
    *("label", "target", "ziel", "zielvariable", "zielgrosse", "cible", "etiquette", "objetivo"),
    *("etiqueta", "bersaglio", "obiettivo", "etichetta", "alvo", "rotulo", "doel", "malvariabel"),
    *("cel", "цель", "метка", "标签", "目标", "目的変数", "y"),
}
_WEIGHTS = {
    *("weight", "weights", "wgt", "wt", "pweight", "gewicht", "poids", "peso", "waga", "vikt"),
    *("hochrechnungsfaktor", "gewichtung", "ponderacion", "ponderation", "вес", "权重"),
}
# of how long, or of how much, each row was seen while events were counted
_EXPOSURES = {"exposure", "exposition", "exposicion", "exposicao", "esposizione", "blootstelling"}
_EXPOSURES_OF_TWO = {("person", "years"), ("policy", "years"), ("vehicle", "years")}
# of times that end with what is to be predicted
_TIMES_UNTIL = {*("followup", "survival", "tte", "ttd", "uberlebenszeit", "nachbeobachtung")}
_TIMES_UNTIL_OF_TWO = {
    *(("follow", "up"), ("time", "to"), ("days", "to"), ("months", "to"), ("time", "until")),
    *(("days", "until"), ("months", "until"), ("os", "months"), ("os", "days"), ("pfs", "months")),
    *(("dfs", "months"), ("time", "months"), ("time", "days"), ("pfs", "days"), ("dfs", "days")),
}
# columns of two values that are rarely predicted
_TRAITS = {
    *("sex", "gender", "geschlecht", "sexe", "genre", "sexo", "genero", "sesso", "genere", "kon"),
    *("kjonn", "plec", "geslacht", "пол", "性别", "性別"),
}
# a label's name may hold these beside other words
_AS_A_WORD = set(LABELS) - {"y", "class", "event", "label", "klass", "klasse", "classe", "clase"}
_AS_A_WORD -= {"klasa", "cel", "ziel", "doel", "ergebnis", "resultat", "resultado", "wynik"}
# and these within a word, such as kreditausfall and hauptdiagnose
_WITHIN = ("ausfall", "diagnos", "kundigung", "kuendigung", "betrug", "zielvariable", "zielgrosse")
# words in the names of columns that tell rows apart, and of amounts that look like codes
_IDS = {
    *("id", "ids", "key", "no", "nr", "number", "code", "uuid", "guid", "index", "pk", "row"),
    *("customer", "patient", "client", "subject", "person", "user", "member", "account", "case"),
    *("pid", "uid", "cid", "sid", "mrn", "ssn", "sku", "ean", "gtin", "isbn", "imei", "barcode"),
    *("kunde", "kunden", "nummer", "kennung", "fall", "konto", "mitglied", "versicherte"),
    *("numero", "identifiant", "matricule", "dossier", "cliente", "paciente", "paziente", "codigo"),
    *("codice", "klant", "nummer", "numer", "klient", "pacjent", "kund", "ид", "编号", "番号"),
}
# names of codes that are whole numbers, which no model learns from as amounts
_CODES = {
    *("zip", "zipcode", "postcode", "postal", "plz", "postleitzahl", "article", "artikel", "sku"),
    *("product", "produkt", "item", "store", "shop", "branch", "filiale", "merchant", "warehouse"),
    *("icd", "sic", "naics", "isco", "district", "department", "municipality", "ward", "code"),
    *("codigo", "cp", "kod", "postnummer", "pocztowy", "mcc", "ean", "gtin", "upc", "isbn"),
    *("barcode", "material", "part", "supplier", "vendor", "lieferant", "hospital", "clinic"),
    *("school", "station", "airport", "flight", "terminal", "campaign", "beat", "block"),
    *("diag", "diagnosis", "diagnose", "procedure", "drg", "cpt", "atc", "ndc", "drug"),
    *("artikelnr", "artikelnummer", "materialnummer", "tienda", "producto", "magasin", "produit"),
    *("negozio", "prodotto", "sklep", "produkty", "winkel", "butik", "codice", "artikelnummern"),
}
# of the words of ids, the ones whose rows may be several of one person
_PERSONS = {
    *("customer", "patient", "client", "subject", "person", "user", "member", "account"),
    *("household", "mrn", "ssn", "pid", "kunde", "kunden", "kundennummer", "patientennummer"),
    *("haushalt", "konto", "mitglied", "versicherte", "dossier", "cliente", "paciente", "paziente"),
    *("klant", "klient", "pacjent", "kund", "patienten", "pat", "versicherter", "versicherten"),
    *("proband", "probanden", "teilnehmer", "mitglieder", "participant", "enrollee", "beneficiary"),
    *("policyholder", "cardholder", "student", "pupil", "employee", "driver", "adherent", "assure"),
    *("asegurado", "alumno", "assistito", "utente", "usuario", "klienta", "pacjenta", "kd"),
}
# what has several rows as well; alone, without a word of ids, they may be the name of its kind
_MACHINES = {
    *("machine", "device", "sensor", "vehicle", "engine", "asset", "equipment", "turbine", "unit"),
    *("car", "truck", "meter", "robot", "pump", "motor", "battery", "aircraft", "bearing"),
    *("maschine", "maschinen", "gerat", "gerate", "geraete", "anlage", "anlagen", "fahrzeug"),
    *("zahler", "zaehler", "appareil", "vehicule", "maquina", "macchina", "apparaat"),
}
# what names a person, or where one lives, or is of one person alone
_NAMES = {
    *("name", "names", "surname", "forename", "firstname", "lastname", "fullname", "middlename"),
    *("nickname", "nick", "fname", "lname", "username", "login", "handle", "holder", "inhaber"),
    *("vorname", "nachname", "familienname", "nom", "prenom", "nombre", "apellido", "apellidos"),
    *("nome", "cognome", "sobrenome", "naam", "voornaam", "achternaam", "imie", "nazwisko"),
    *("fornamn", "efternamn", "titular", "titulaire", "birthday", "birthdate", "geburtsdatum"),
    # where one lives or is
    *("address", "addr", "adresse", "anschrift", "adres", "direccion", "indirizzo", "endereco"),
    *("street", "strasse", "rue", "calle", "straat", "ulica", "domicilio", "domicile", "geohash"),
    *("gps", "latlon", "coordinates", "koordinaten", "coordenadas", "hausnummer"),
    # by which one is reached
    *("phone", "telephone", "telefon", "telefono", "telefone", "telefoon", "tel", "telefonu"),
    *("mobile", "handy", "fax", "msisdn", "imsi", "imei", "email", "mail", "correo"),
    *("ip", "ipaddress", "ipaddr", "mac", "cookie", "session", "fingerprint", "useragent"),
    # what a bank, a state or an insurer numbers
    *("iban", "pan", "card", "karte", "kartennummer", "tarjeta", "carte", "acct", "accountno"),
    *("passport", "ausweis", "nss", "nif", "dni", "nie", "cuit", "curp", "rut", "cpf", "pesel"),
    *("nip", "bsn", "ahv", "svnr", "kvnr", "npi", "lanr", "fiscale", "personnummer", "nhs"),
    # what is on a vehicle
    *("plate", "plates", "kennzeichen", "targa", "immatriculation", "matricula", "kenteken"),
    *("nummerplaat", "rejestracja", "vin", "fahrgestellnummer", "tailnum"),
}
# who serves others, and whose names and numbers are those of persons
_STAFF = {
    *("doctor", "doctors", "physician", "provider", "prescriber", "surgeon", "nurse", "gp"),
    *("consultant", "therapist", "dentist", "clinician", "radiologist", "anesthesiologist"),
    *("arzt", "arztin", "aerztin", "behandler", "operateur", "pfleger", "medico", "medica"),
    *("medecin", "docteur", "infirmier", "infirmiere", "arts", "huisarts", "lekarz", "lakare"),
    *("agent", "broker", "makler", "vermittler", "berater", "realtor", "salesperson", "salesman"),
    *("seller", "verkaufer", "verkaeufer", "vendedor", "vendeur", "venditore", "sprzedawca"),
    *("verkoper", "cashier", "kassierer", "staff", "mitarbeiter", "bearbeiter", "sachbearbeiter"),
    *("pracownik", "empleado", "employe", "medewerker", "teacher", "lehrer", "professor"),
    *("officer", "judge", "richter", "lawyer", "attorney", "anwalt", "manager", "supervisor"),
    *("recruiter", "interviewer", "operator", "technician", "inspector", "adjuster", "author"),
    *("reviewer", "captain", "pilot", "rider", "fahrer", "conducteur", "conductor", "kierowca"),
    *("owner", "besitzer", "eigentumer", "eigentuemer", "halter", "propietario", "proprietario"),
    *("proprietaire", "własciciel", "tenant", "mieter", "landlord", "vermieter", "applicant"),
    *("borrower", "cosigner", "guarantor", "antragsteller", "passenger", "guest", "contact"),
    *("candidate", "bewerber", "candidat", "candidato", "kandydat", "witness", "victim", "suspect"),
}
# of which a column tells beside a person, and that are no person's
_SHARED = {
    *("type", "typ", "kind", "art", "category", "kategorie", "class", "klasse", "group", "gruppe"),
    *("segment", "level", "stufe", "grade", "rank", "status", "state", "specialty", "speciality"),
    *("specialisation", "specialization", "fachrichtung", "role", "rolle", "title", "occupation"),
    *("job", "beruf", "industry", "sector", "branch", "team", "domain", "race", "gender", "sex"),
    *("age", "language", "sprache", "nationality", "zip", "plz", "postcode", "diagnosis", "plan"),
    *("channel", "kanal", "network", "bank", "method", "mode", "reason", "os", "school"),
    *("station", "supplier", "vendor", "airline", "airport", "campaign", "route"),
}
# whose names are none of a person
_THINGS = {
    *("product", "item", "brand", "company", "merchant", "store", "shop", "city", "country"),
    *("drug", "medication", "test", "species", "model", "hospital", "ward", "department", "region"),
    *("station", "school", "team", "league", "airport", "supplier", "campaign", "course"),
    "variety",
    *("movie", "film", "song", "game", "genre", "terminal", "flight", "part", "material"),
    *("produkt", "artikel", "marke", "modell", "firma", "stadt", "ort", "gemeinde", "land"),
    *("klinik", "abteilung", "wirkstoff", "medikament", "lieferant", "filiale"),
    *("produit", "article", "marque", "modele", "entreprise", "ville", "commune", "pays"),
    *("producto", "marca", "modelo", "empresa", "ciudad", "municipio", "pais", "prodotto"),
    *("citta", "comune", "azienda", "miasto", "gmina", "marka", "firmy"),
}
_OF_IDS = {
    *("id", "ids", "nr", "nbr", "no", "nummer", "number", "num", "code", "key", "uuid", "kennung"),
    *("codigo", "codice", "kod", "numero", "numer", "hash"),
}
# what pandas and R call an index without a name, once it is written
_ROW_NUMBERS = re.compile(r"Unnamed: \d+|__index_level_\d+__|level_\d+|\.\.\.\d+|index|row_?names?")
_AMOUNT_ENDS = ("anzahl", "zeit", "tage", "jahre", "monate", "stunden", "stufe", "punkte", "alter")
_ID_ENDS = ("id", "nr", "nummer", "number", "schlussel")
_AMOUNTS = {
    *("age", "count", "n", "num", "number", "children", "year", "years", "months", "days", "rooms"),
    *("score", "rating", "level", "grade", "stage", "visits", "times", "rank", "size", "amount"),
    *("satisfaction", "stars", "quality", "likert", "scale", "importance", "agreement", "pain"),
    *("frequency", "intensity", "priority", "doors", "nights", "adults", "persons", "people"),
    *("occupants", "residents", "guests", "beds", "bedrooms", "bathrooms", "floors", "bewohner"),
    *("zufriedenheit", "bewertung", "skala", "wichtigkeit", "schmerz", "sterne", "personen"),
    *("alter", "anzahl", "jahr", "jahre", "monate", "tage", "kinder", "note", "stufe", "zimmer"),
    *("nombre", "annee", "annees", "mois", "jours", "enfants", "edad", "anos", "hijos", "meses"),
    *("eta", "anni", "mesi", "figli", "idade", "filhos", "leeftijd", "aantal", "jaren", "wiek"),
}


_TIMES_ALONE = {"time", "days", "months", "tage", "monate", "jours", "mois"}


@lru_cache(maxsize=1 << 15)
def words(name: str) -> tuple[str, ...]:
    """Return the words of a column's name, in small letters without accents."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})", " ", name)  # IPAddress
    plain = "".join(
        one for one in unicodedata.normalize("NFKD", parted) if not unicodedata.combining(one)
    )
    return tuple(one for one in re.split(r"[\W_]+", plain.casefold()) if one)


def is_id(name: str) -> bool:
    """Return whether a name is that of an id."""
    own = words(name)
    return bool(_IDS & set(own)) or any(one.endswith(_ID_ENDS) and len(one) > 4 for one in own)


def numbers_rows(name: str) -> bool:
    """Return whether a name is one that libraries give to a column of the rows' numbers."""
    return bool(_ROW_NUMBERS.fullmatch(name))


def is_group(name: str) -> bool:
    """Return whether a name is that of the id of a person, a household or a machine.

    It says nothing else: `patient_id` and `customer` are such, `patient_weight` and `machine` not.
    Nor is `engine_code`, which mostly names a type of engines.
    """
    own = {one for word in words(name) for one in _parted(word)}
    person, machine = own & _PERSONS, own & _MACHINES and own & (_OF_IDS - {"code"})
    return bool(person or machine) and own <= _PERSONS | _MACHINES | _OF_IDS


def _parted(word: str) -> tuple[str, ...]:
    """Return the words of one that ends in an id's, such as of `patientid`."""
    known = _PERSONS | _MACHINES
    end = next((one for one in _OF_IDS if word.removesuffix(one) in known), "")
    return (word.removesuffix(end), end) if end and word not in known else (word,)


def is_amount(name: str) -> bool:
    """Return whether a name is that of an amount."""
    own = [one.rstrip("0123456789") for one in words(name)]  # Note1, Note2
    return bool(_AMOUNTS & set(own)) or any(one.endswith(_AMOUNT_ENDS) for one in own)


def is_time_until(name: str) -> bool:
    """Return whether a name is that of the time until something was seen, or rows were left."""
    own = words(name)
    pairs = {*pairwise(own)}
    alone = len(own) == 1 and own[0] in _TIMES_ALONE
    return alone or bool(_TIMES_UNTIL & {*own}) or bool(pairs & _TIMES_UNTIL_OF_TWO)


def is_code(name: str) -> bool:
    """Return whether a name is that of a code, such as a postcode or a product's, and no more.

    `zip`, `zip3`, `diag_1` and `store_no` are such, `product_price` and `num_store` are none.
    """
    own = [one.rstrip("0123456789") for one in words(name)]
    known = {one for one in own if one}
    return bool(_CODES & known) and known <= _CODES | _OF_IDS and own[0] not in _COUNTS


_COUNTS = {"n", "no", "num", "number", "numero", "numer"}  # before what is counted, or numbered


def names_persons(name: str) -> bool:
    """Return whether a name is that of persons, or of what each has alone, such as an address.

    `customer_id`, `last_name`, `listing_agent` and `Kennzeichen` are such, `brand_name`,
    `agent_type` and `device_model` not.
    """
    written = [one.rstrip("0123456789") or one for one in words(name)]  # Driver1
    if is_group(" ".join(written)) or {*pairwise(written)} & _PERSONS_OF_TWO:
        return True
    own = {*written, *(part for one in written for part in _two_parts(one))}
    said = own & _NAMES or own & _STAFF or any(one.endswith(_PERSON_ENDS) for one in own)
    return bool(said) and not own & (_THINGS | _SHARED)


_PERSONS_OF_TWO = {
    *(("sales", "rep"), ("social", "security"), ("geo", "hash"), ("lat", "lon"), ("lat", "lng")),
    *((one, end) for one in ("cc", "tail", "hospital") for end in ("no", "nr", "num", "number")),
}
# as of Hausarzt and KFZ-Kennzeichen written as one word
_PERSON_ENDS = ("arzt", "arztin", "huisarts", "kennzeichen", "fahrer", "makler", "vermittler")


def _two_parts(word: str) -> tuple[str, ...]:
    """Return the two words that one is written of, of which one names a person, as patientname."""
    for at in range(2, len(word) - 1):
        first, second = word[:at], word[at:]
        if first in _PERSONS | _STAFF and second in _NAMES | _STAFF | _OF_IDS | _SHARED:
            return first, second
    return ()


def tells_persons(name: str) -> bool:
    """Return whether a name is that of an id, or of what else may tell persons apart.

    `customer_id`, `last_name` and `street` are such, `product_code` and `brand_name` not.
    """
    if names_persons(name):
        return True
    return is_id(name) and not is_code(name) and not {*words(name)} & (_THINGS | {"code", "codes"})


def is_weight(name: str) -> bool:
    """Return whether a name is that of a weight, of a body or of how much a row counts."""
    return bool(_WEIGHTS & {*words(name)})


def is_exposure(name: str) -> bool:
    """Return whether a name is that of the time, or amount, in which a row's events were counted.

    `Exposure` and `person_years` are such; of `exposure_to_dust` nobody knows.
    """
    own = words(name)
    return own in _EXPOSURES_OF_TWO or (len(own) == 1 and own[0] in _EXPOSURES)


def is_trait(name: str) -> bool:
    """Return whether a name is that of a person's sex, which has two values and is no label."""
    return bool(_TRAITS & set(words(name)))


def is_plain_label(name: str) -> bool:
    """Return whether a name says that a column is to be predicted, and nothing else."""
    own = words(name)
    return len(own) == 1 and own[0] in _PLAIN


def label_rank(name: str, *, two: bool) -> int | None:
    """Return how much a name is that of a label, 0 the most; None: not at all.

    A name that holds the word among others is one for a column of two values only.
    """
    own = words(name)
    if len(own) == 1 and own[0] in LABELS:
        return LABELS.index(own[0])
    said = [one for one in own if one in _AS_A_WORD]
    if said and two:
        return len(LABELS) + LABELS.index(said[0])
    within = any(part in one for one in own for part in _WITHIN)
    return 2 * len(LABELS) if within and two else None
