// A picture with at most so many colours: `node palette.mjs FILE.png COLOURS` writes it in place of what was there.
import { readFileSync, writeFileSync } from 'node:fs';
import UPNG from 'upng-js';

const [file, colours] = process.argv.slice(2);
const picture = UPNG.decode(readFileSync(file));
writeFileSync(file, Buffer.from(UPNG.encode(UPNG.toRGBA8(picture), picture.width, picture.height, Number(colours))));
